package dashboards

import (
	"encoding/json"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/monitoring"
	"github.com/sluice-dev/sluice/monitoring/dashboard"
)

// Options are the parts of a set that the installation decides.
type Options struct {
	// Labels are added to every ConfigMap with a dashboard. Grafana's sidecar finds it by them.
	Labels map[string]string
	// FolderAnnotation is the key under which the sidecar finds the folder.
	FolderAnnotation string
	// Instances are the labels by which grafana-operator's resources select the Grafanas that they are for.
	Instances map[string]string
	// Datasource is the uid of the Prometheus data source; empty lets the reader choose.
	Datasource string
	// Docs is the URL under which the pages of docs/ are.
	Docs string
}

// DefaultOptions are what the charts of Grafana and of grafana-operator look for, unless told otherwise.
func DefaultOptions() Options {
	return Options{
		Labels: map[string]string{"grafana_dashboard": "1"}, FolderAnnotation: "grafana_folder", Instances: map[string]string{"dashboards": "grafana"},
	}
}

// GrafanaVersion is the version of grafana-operator's resources.
var GrafanaVersion = schema.GroupVersion{Group: "grafana.integreatly.org", Version: "v1beta1"}

// Folders and Dashboards are the resources of grafana-operator.
var (
	Folders    = monitoring.Resource{Kind: "GrafanaFolder", GVR: GrafanaVersion.WithResource("grafanafolders")}
	Dashboards = monitoring.Resource{Kind: "GrafanaDashboard", GVR: GrafanaVersion.WithResource("grafanadashboards")}
)

// Count is how many dashboards a set has.
func Count() int { return len(dashboard.Subjects()) }

const (
	// maxBytes bounds a dashboard: an object of the API server has at most 1 MiB, and some of it is not the dashboard.
	maxBytes = 900 << 10
	// resync is how often grafana-operator looks whether a dashboard or folder is as it should be.
	resync = "10m"
)

// file is the key of a dashboard in its ConfigMap. The sidecar of Grafana's chart writes a file of that name into the folder, so
// no two dashboards of a cluster may share one, whatever folders their tenants chose.
func (s Set) file(key string) string { return s.Namespace + "." + s.objectName(key) + ".json" }

func (s Set) labels() map[string]string {
	return map[string]string{
		v1alpha1.LabelTenant: s.Tenant, v1alpha1.LabelComponent: v1alpha1.ComponentDashboards,
		"app.kubernetes.io/name": "sluice-dashboards", "app.kubernetes.io/instance": s.anchorName(),
		"app.kubernetes.io/component": v1alpha1.ComponentDashboards, "app.kubernetes.io/managed-by": "sluice-operator",
	}
}

// Anchor is what the services of a set own, and what owns the rest.
func Anchor(s Set) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: s.anchorName(), Namespace: s.Namespace, Labels: s.labels(), OwnerReferences: s.Owners},
		Data:       map[string]string{"tenant": s.Tenant, "folder": s.Folder},
	}
}

// ownedBy is the anchor as the controller of an object. It does not block the anchor's deletion, which would take a right on its
// finalizers.
func ownedBy(anchor *corev1.ConfigMap) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: anchor.Name, UID: anchor.UID, Controller: new(true)}}
}

// ConfigMaps gives the dashboards of a set, in the order of their subjects, without an owner.
func ConfigMaps(s Set, options Options) ([]*corev1.ConfigMap, error) {
	labels := map[string]string{}
	maps.Copy(labels, options.Labels)
	maps.Copy(labels, s.Labels)
	maps.Copy(labels, s.labels()) // the operator finds its objects by these
	var list []*corev1.ConfigMap
	for _, subject := range dashboard.Subjects() {
		text, err := render(s, subject, options)
		if err != nil {
			return nil, fmt.Errorf("build the dashboard %s of tenant %s: %w", subject.Key, s.Tenant, err)
		}
		object := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: s.objectName(subject.Key), Namespace: s.Namespace, Labels: labels},
			Data:       map[string]string{s.file(subject.Key): text},
		}
		if options.FolderAnnotation != "" {
			object.Annotations = map[string]string{options.FolderAnnotation: s.Folder}
		}
		list = append(list, object)
	}
	return list, nil
}

// render gives the JSON of a dashboard.
func render(s Set, subject dashboard.Subject, options Options) (string, error) {
	engines := []string{"inference_service", "pool", "replica"}
	d, err := dashboard.BuildSubject(dashboard.Options{
		UID: s.uid(), Title: title(s.Namespace, s.Tenant), Tags: []string{"sluice", "tenant:" + s.Tenant}, Folded: true,
		Datasource: options.Datasource,
		Fixed:      []dashboard.Matcher{{Label: "namespace", Value: s.Namespace}, {Label: "tenant", Value: s.Tenant}},
		Filters:    engines, Replica: engines, Router: []string{"inference_service"},
		TTFT: s.TTFT, ITL: s.ITL, Docs: options.Docs,
	}, subject)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(d)
	if err != nil {
		return "", err
	}
	if len(text) > maxBytes {
		return "", fmt.Errorf("it has %d bytes, more than the %d that a ConfigMap takes", len(text), maxBytes)
	}
	return string(text), nil
}

// Grafana gives the resources of grafana-operator: the folder, then the dashboards, owned by the anchor.
func Grafana(s Set, options Options, anchor *corev1.ConfigMap) []*unstructured.Unstructured {
	labels := map[string]string{}
	maps.Copy(labels, s.Labels)
	maps.Copy(labels, s.labels())
	instances := map[string]any{}
	for key, value := range options.Instances {
		instances[key] = value
	}
	object := func(kind, name string, spec map[string]any) *unstructured.Unstructured {
		// Grafanas usually live in a namespace of their own.
		spec["allowCrossNamespaceImport"] = true
		spec["instanceSelector"] = map[string]any{"matchLabels": instances}
		spec["resyncPeriod"] = resync
		u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
		u.SetGroupVersionKind(GrafanaVersion.WithKind(kind))
		u.SetName(name)
		u.SetNamespace(s.Namespace)
		u.SetLabels(labels)
		u.SetOwnerReferences(ownedBy(anchor))
		return u
	}
	list := []*unstructured.Unstructured{object(Folders.Kind, s.anchorName(), map[string]any{"title": s.Folder})}
	for _, subject := range dashboard.Subjects() {
		name := s.objectName(subject.Key)
		list = append(list, object(Dashboards.Kind, name, map[string]any{
			"configMapRef": map[string]any{"name": name, "key": s.file(subject.Key)}, "folderRef": s.anchorName(),
		}))
	}
	return list
}
