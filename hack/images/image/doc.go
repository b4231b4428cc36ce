// Package image builds container images of this repository's programs without a container engine: one static
// executable in one layer on an empty base, run by an unprivileged user.
//
// The same source gives the same bytes: paths are trimmed, times are fixed, and files are written in order.
// The result is a tar file that "ctr images import", "docker load" and hack/devcluster read.
//
// It must not know registries. Callers: hack/images and hack/devcluster/cluster (the sandbox image).
package image
