// Package docrun reads the commands that the pages tell their readers to type, and runs them in a shell as a reader would:
//
//  1. page.go     a page's fenced blocks, and who runs them
//  2. step.go     a block's commands, each with the output that stands below it
//  3. match.go    whether an output is the one that stands there
//  4. session.go  one shell that runs one command after another
//  5. runner.go   a block in a session
//
// It owns the form of marks and blocks, and no assertion of a page. It must not know what a page is about: test/docs,
// test/monitoring and test/e2e choose pages, prepare what they need and call it.
package docrun
