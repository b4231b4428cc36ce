// Package trial tries the product on a cluster the way a person would: it installs the chart, makes a small model on a
// volume, applies manifests, sends completions through the router, puts load on it and reads what the operator says.
// It owns no assertion. The demo (hack/demo) tells a story with it, the end-to-end tests (test/e2e) judge with it.
package trial
