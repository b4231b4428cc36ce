package dashboards

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/monitoring/rules"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// maxOwners is how many services own a set. More than one, so that it outlives the first; not all of them, so that a set
// doesn't grow with the number of services.
const maxOwners = 8

// Set is the dashboards of a tenant in a namespace: plain data, the same for all of its services.
type Set struct {
	Namespace, Tenant string

	// Folder is the title of Grafana's folder.
	Folder string
	// Labels are what the services add.
	Labels map[string]string
	// Owners are services of the tenant in the namespace; none means that nobody wants the set.
	Owners []metav1.OwnerReference
	// TTFT and ITL are the tightest objectives of the services, in seconds: bounds of the histograms.
	TTFT, ITL float64
}

// NewSet gives the set of a tenant in a namespace. services are all of the namespace; those of others, those that are being
// deleted and those that want no dashboards are left out.
func NewSet(namespace, tenant string, services []v1alpha1.InferenceService) Set {
	s := Set{Namespace: namespace, Tenant: tenant, Folder: title(namespace, tenant)}
	var members []*v1alpha1.InferenceService
	for i := range services {
		service := &services[i]
		if service.Namespace == namespace && plan.Tenant(service) == tenant && service.DeletionTimestamp == nil && service.Spec.Observability.Dashboards.Wanted() {
			members = append(members, service)
		}
	}
	s.TTFT = tightest(members, "sglang:time_to_first_token_seconds", 1, func(o *v1alpha1.SLOSpec) *v1alpha1.LatencyObjective { return o.TTFT })
	s.ITL = tightest(members, "sglang:inter_token_latency_seconds", 0.1, func(o *v1alpha1.SLOSpec) *v1alpha1.LatencyObjective { return o.ITL })

	slices.SortFunc(members, func(a, b *v1alpha1.InferenceService) int { return strings.Compare(a.Name, b.Name) })
	for _, service := range slices.Backward(members) { // the first by name is the last to say
		own := service.Spec.Observability.Dashboards
		if own.Folder != "" {
			s.Folder = own.Folder
		}
		if len(own.Labels) > 0 && s.Labels == nil {
			s.Labels = map[string]string{}
		}
		maps.Copy(s.Labels, own.Labels)
	}
	slices.SortStableFunc(members, func(a, b *v1alpha1.InferenceService) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	members = members[:min(len(members), maxOwners)]
	for _, service := range members {
		s.Owners = append(s.Owners, metav1.OwnerReference{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "InferenceService", Name: service.Name, UID: service.UID,
		})
	}
	slices.SortFunc(s.Owners, func(a, b metav1.OwnerReference) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// tightest gives the smallest threshold, as the bound at which it is measured.
func tightest(services []*v1alpha1.InferenceService, family string, otherwise float64, of func(*v1alpha1.SLOSpec) *v1alpha1.LatencyObjective) float64 {
	var least float64
	for _, service := range services {
		if service.Spec.SLO == nil {
			continue
		}
		if o := of(service.Spec.SLO); o != nil && (least == 0 || o.Threshold.Seconds() < least) {
			least = o.Threshold.Seconds()
		}
	}
	f, ok := metrics.Lookup(family)
	if least <= 0 || !ok {
		return otherwise
	}
	bound, _ := rules.Snap(least, f.Buckets)
	return bound
}

// title is how people call the set: the tenant, and the namespace where that has another name.
func title(namespace, tenant string) string {
	if namespace == tenant {
		return tenant
	}
	return tenant + " (" + namespace + ")"
}

// anchorName is the name of the anchor and of the folder.
func (s Set) anchorName() string { return "sluice-dashboards-" + slug(s.Tenant) }

// objectName is the name of what exists once a subject. Keys of subjects have no dash, so that no two tenants share a name.
func (s Set) objectName(key string) string { return "sluice-dashboard-" + slug(s.Tenant) + "-" + key }

// uid is the beginning of the UIDs of dashboards, which are unique in a Grafana.
func (s Set) uid() string { return "sluice-" + hash(s.Namespace + "/" + s.Tenant)[:12] }

// slug makes a DNS label of at most 72 characters of a tenant; different tenants stay different.
func slug(tenant string) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		case r == '_' || r == '.':
			return '-'
		default:
			return r
		}
	}, tenant)
	if kept == tenant {
		return tenant
	}
	return kept + "-" + hash(tenant)[:8]
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
