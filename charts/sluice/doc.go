// Package sluice holds the Helm chart of the operator; its test renders the chart and applies it to a real API server.
// The files under files/ are generated: the CustomResourceDefinitions from api/v1alpha1 and the role of the operator from
// the markers of the controllers.
package sluice
