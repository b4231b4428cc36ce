// Package version holds the version that the programs report. The build sets it.
package version

// Version is set at link time to a tag or commit.
var Version = "dev"
