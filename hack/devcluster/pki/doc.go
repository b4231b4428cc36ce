// Package pki makes the certificates of a development cluster: authorities, the certificates they sign, and
// token-signing keys, all ECDSA P-256 in PEM.
//
// It must not know which component uses which certificate. Caller: hack/devcluster/controlplane.
package pki
