// Package docs holds the pages to what they say: every block that a reader would type into a shell is run by some test or says
// why not, blocks that repeat a file are like it, manifests are accepted by an API server, and samples are explained. It runs the
// pages that need engines and no cluster itself; test/monitoring and test/e2e run the others, all of them by hack/docrun.
package docs
