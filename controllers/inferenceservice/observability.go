package inferenceservice

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/metrics"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/controllers/monitoring/dashboards"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=prometheusrules,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=grafana.integreatly.org,resources=grafanafolders;grafanadashboards,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;create;update;delete

// Reasons of the condition DashboardsProvisioned.
const (
	reasonDashboards       = "Provisioned"
	reasonDashboardsOff    = "Disabled"
	reasonDashboardsFailed = "ApplyFailed"
)

// applyRules makes the PrometheusRule of the service, or removes it. What fails goes into the step: a service serves without.
func (r *Reconciler) applyRules(ctx context.Context, step *step) {
	service := step.service
	if r.Monitors.Missing(monitoring.PrometheusRules) {
		return
	}
	if !service.Spec.Observability.Rules.Wanted() {
		removed, err := r.Monitors.Remove(ctx, monitoring.PrometheusRules, client.ObjectKeyFromObject(service), plan.OwnedByService(service)[0])
		if removed {
			r.Recorder.Eventf(service, nil, corev1.EventTypeNormal, "RulesRemoved", "Apply", "PrometheusRule %s is not wanted any more: observability.rules.enabled is false", service.Name)
		}
		step.rulesErr = err
		return
	}
	key := client.ObjectKeyFromObject(service)
	if r.rulesApplied(key) == service.Generation && r.Monitors.Settled(monitoring.PrometheusRules, key) {
		return
	}
	rule, err := rules.Build(service, r.RuleOptions)
	if err != nil {
		step.rulesErr, step.rulesInvalid = err, true
		return
	}
	change, err := r.Monitors.Apply(ctx, rule)
	if change.Outcome == monitoring.Restored {
		r.Recorder.Eventf(service, nil, corev1.EventTypeWarning, "RulesRestored", "Apply", "PrometheusRule %s is as it was again: %s", rule.Name, change.Detail)
	}
	step.rulesErr = err
	if err == nil {
		r.mu.Lock()
		r.rulesOf[key] = service.Generation
		r.mu.Unlock()
	}
}

// rulesApplied gives the generation of a service whose rules were applied last; 0 for none.
func (r *Reconciler) rulesApplied(key client.ObjectKey) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rulesOf[key]
}

// provisioned is the condition MonitoringProvisioned: that of the monitors, and of the rules where they failed.
func (s *step) provisioned() metav1.Condition {
	condition := monitoring.Provisioned(s.monitors, s.service.Generation)
	if s.rulesErr == nil {
		return condition
	}
	said := "rules: " + s.rulesErr.Error()
	if condition.Status == metav1.ConditionFalse {
		said = condition.Message + "; " + said
	} else {
		condition.Status, condition.Reason = metav1.ConditionFalse, "RulesFailed"
	}
	condition.Message = said
	return condition
}

// applyDashboards keeps the dashboards of the service's tenant in its namespace, and those of a tenant that it had before.
func (r *Reconciler) applyDashboards(ctx context.Context, step *step) {
	if r.Dashboards == nil {
		return
	}
	step.dashboards = true
	service := step.service
	services, err := r.neighbours(ctx, service.Namespace)
	if err != nil {
		step.dashboardsErr = err
		return
	}
	tenant := plan.Tenant(service)
	before, err := r.Dashboards.Foreign(ctx, service.Namespace, tenant, service.UID)
	failures := []error{err}
	for _, t := range append([]string{tenant}, before...) {
		failures = append(failures, r.applySet(ctx, service, dashboards.NewSet(service.Namespace, t, services)))
	}
	step.dashboardsErr = errors.Join(failures...)
}

// applySet makes the dashboards of one tenant, and what grafana-operator needs to find them where it is there.
func (r *Reconciler) applySet(ctx context.Context, service *v1alpha1.InferenceService, set dashboards.Set) error {
	anchor, changes, err := r.Dashboards.Apply(ctx, set)
	failures := []error{err}
	var restored, removed []string
	for _, change := range changes {
		switch {
		case change.Restored:
			restored = append(restored, change.Name)
			r.Counts.Changed("ConfigMap", metrics.Restored)
		case change.Removed:
			removed = append(removed, change.Name)
			r.Counts.Changed("ConfigMap", metrics.Deleted)
		default:
			r.Counts.Changed("ConfigMap", metrics.Applied)
		}
	}
	if len(restored) > 0 {
		r.Recorder.Eventf(service, nil, corev1.EventTypeWarning, "DashboardsRestored", "Apply", "somebody changed or deleted dashboards of tenant %s, they are as they were again: ConfigMaps %s", set.Tenant, strings.Join(restored, ", "))
	}
	if len(removed) > 0 {
		r.Recorder.Eventf(service, nil, corev1.EventTypeNormal, "DashboardsRemoved", "Apply", "no service of tenant %s in the namespace wants dashboards: %d ConfigMaps are deleted", set.Tenant, len(removed))
	}
	if anchor == nil || r.Monitors.Missing(dashboards.Folders) || r.Monitors.Missing(dashboards.Dashboards) {
		return errors.Join(failures...)
	}
	for _, object := range dashboards.Grafana(set, r.Dashboards.Options, anchor) {
		change, err := r.Monitors.Apply(ctx, object)
		if err != nil {
			failures = append(failures, err)
		}
		if change.Outcome == monitoring.Restored {
			r.Recorder.Eventf(service, nil, corev1.EventTypeWarning, "DashboardsRestored", "Apply", "%s %s is as it was again: %s", object.GetKind(), object.GetName(), change.Detail)
		}
	}
	return errors.Join(failures...)
}

// neighbours lists the services of a namespace. They are the cache's own: nobody may change them.
func (r *Reconciler) neighbours(ctx context.Context, namespace string) ([]v1alpha1.InferenceService, error) {
	var list v1alpha1.InferenceServiceList
	if err := r.Client.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list the InferenceServices of namespace %s: %w", namespace, err)
	}
	return list.Items, nil
}

// setDashboards says what became of the dashboards.
func setDashboards(step *step) {
	_, waits := owned.Wait(step.dashboardsErr)
	switch {
	case waits: // with another writer in between nothing is known yet
	case step.dashboardsErr != nil:
		step.set(v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionFalse, reasonDashboardsFailed, step.dashboardsErr.Error())
	case !step.service.Spec.Observability.Dashboards.Wanted():
		step.set(v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionUnknown, reasonDashboardsOff, "observability.dashboards.enabled is false")
	default:
		step.set(v1alpha1.ConditionDashboardsProvisioned, metav1.ConditionTrue, reasonDashboards,
			fmt.Sprintf("%d dashboards of tenant %s exist in the namespace", dashboards.Count(), plan.Tenant(step.service)))
	}
}

// heir gives a service that keeps the dashboards of a tenant in a namespace, if there is one.
func (r *Reconciler) heir(ctx context.Context, namespace, tenant string) []reconcile.Request {
	services, err := r.neighbours(ctx, namespace)
	if err != nil {
		return nil
	}
	set := dashboards.NewSet(namespace, tenant, services)
	if len(set.Owners) == 0 {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: namespace, Name: set.Owners[0].Name}}}
}

// keeperOf gives the service that an object belongs to by its labels, or one that keeps the dashboards that it is part of.
func (r *Reconciler) keeperOf(ctx context.Context, object client.Object) []reconcile.Request {
	if object.GetLabels()[v1alpha1.LabelComponent] == v1alpha1.ComponentDashboards {
		return r.heir(ctx, object.GetNamespace(), object.GetLabels()[v1alpha1.LabelTenant])
	}
	return serviceOf(ctx, object)
}
