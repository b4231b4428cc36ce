package v1alpha1

// RulesSpec says whether Prometheus gets recording rules and alerts for the service, and with which labels.
type RulesSpec struct {
	// Enabled makes a PrometheusRule, where the cluster has that resource.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// Labels are added to the PrometheusRule, for a Prometheus that selects rules by labels, for example release: prometheus.
	// They cannot replace the operator's own labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="observability.rules.labels must be label keys and values: a value has at most 63 characters"
	Labels map[string]string `json:"labels,omitempty"`
}

// DashboardsSpec says whether Grafana gets dashboards for the tenant of the service, and where. All services of a tenant in a
// namespace share one set of dashboards: it is there while one of them wants it, has the labels of all of them, and lies in the
// folder of the first, by name, that gives one.
type DashboardsSpec struct {
	// Enabled makes the dashboards.
	// +optional
	// +kubebuilder:default=true
	Enabled *bool `json:"enabled,omitempty"`

	// Labels are added to the ConfigMaps and to the resources of grafana-operator. They cannot replace the operator's own labels.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	// +kubebuilder:validation:XValidation:rule="self.all(k, size(k) <= 317 && size(self[k]) <= 63)",message="observability.dashboards.labels must be label keys and values: a value has at most 63 characters"
	Labels map[string]string `json:"labels,omitempty"`

	// Folder is the title of Grafana's folder. By default the tenant, with the namespace behind it where that has another name.
	// +optional
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="!self.contains('/') && self != '.' && self != '..' && self.matches('^[^[:cntrl:]]*$')",message="observability.dashboards.folder is the title of one folder: without '/', for example Team A"
	Folder string `json:"folder,omitempty"`
}

// Wanted says whether rules are made; so they are unless somebody said no.
func (s RulesSpec) Wanted() bool { return s.Enabled == nil || *s.Enabled }

// Wanted says whether dashboards are made; so they are unless somebody said no.
func (s DashboardsSpec) Wanted() bool { return s.Enabled == nil || *s.Enabled }
