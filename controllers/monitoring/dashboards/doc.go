// Package dashboards gives Grafana a set of dashboards for each tenant in each namespace in which it has services.
//
// It owns what a set is made of (Set), its objects (Anchor, ConfigMaps, Grafana), and the way of the ConfigMaps to the cluster
// (Applier). The panels are those of monitoring/dashboard, built with the tenant and the namespace in every query. It must not
// know Grafana, Prometheus, or what a service is made of. The inferenceservice controller calls it for each service and turns
// what became of the set into the condition DashboardsProvisioned.
//
// Where objects live and who owns them: a tenant may have services in several namespaces, and a namespace services of several
// tenants, so there is one set for each pair, in that namespace, and it shows the tenant's services of that namespace alone. A
// small ConfigMap, the anchor, is owned by the oldest services of the set, at most maxOwners of them, none as its controller;
// all else of the set is owned by the anchor. The garbage collector of Kubernetes thus removes a set with its last service, with
// or without a running operator, and keeps it before. More services than maxOwners change nothing: a set costs no write per
// service. When an owner goes, the next service takes its place.
//
// Who reads a set: the sidecar of Grafana's chart finds the ConfigMaps by a label and the folder by an annotation; where
// grafana-operator's resources exist, a GrafanaFolder and GrafanaDashboards that point to the ConfigMaps do the same for it.
package dashboards
