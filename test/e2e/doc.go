// Package e2e judges the product on a real cluster: the dev cluster, or the one of KUBECONFIG. Its tests have the build tag
// e2e and run with `make e2e`; they share one installation and run one after the other, since the machine is small.
package e2e
