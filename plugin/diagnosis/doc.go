// Package diagnosis leads from samples of a service to what is behind a complaint, on the five paths of docs/diagnosis.md, with
// the numbers that led there. Everything in it is a pure function. Reading order:
//
//  1. exposition.go  text of /metrics to series
//  2. measure.go     two scrapes and some polls of an engine to facts about its ranks and its way in
//  3. paths.go       facts to findings, path by path, each with its numbers and its bounds
//  4. conclude.go    findings to the one conclusion
//  5. text.go        the report for people
//
// It must not know how samples are taken. The command `diagnose` of package plugin calls it, and test/diagnose on staged faults.
package diagnosis
