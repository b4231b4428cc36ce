// Package controllers is the operator: it turns an InferenceService into engine pods, a router, monitors and autoscalers.
// This package puts the parts into one manager (manager.go); each part has its own package. Reading order:
//
//  1. plan             decisions as pure functions: ranks, pods, replicas, services
//  2. owned            when an object of ours is written, and that another's never is
//  3. metrics          the operator's own series: what was decided, and what objects say of themselves
//  4. inferenceservice a service to pools, a router and monitors
//  5. enginepool       a pool to pods and an autoscaler
//  6. semantics        what the engines' numbers mean, and how they add up
//  7. observe          what the engines say, with its age
//  8. autoscaling      HorizontalPodAutoscalers and the custom metrics API
//  9. monitoring       monitors, rules and dashboards for Prometheus and Grafana
//
// A resource goes read → plan → apply → observe → status; both controllers have the same file names for it.
package controllers
