// Package buildcache turns pinned Go programs into executables, once per version.
//
// It owns the cache directory ($SLUICE_CACHE, else the user's cache directory plus "sluice"), the table of
// tools (tools.go) and the lock that keeps two builders of the same tool apart. A tool's version is read from
// the go.mod file of the nested module that pins it, so that file is the only place to change it.
//
// It must not know what the tools are used for. Callers: hack/tool, hack/devcluster and tests that start an
// API server.
package buildcache
