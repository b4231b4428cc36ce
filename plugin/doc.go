// Package plugin is kubectl sluice: what each command reads, asks of engines and routers, and writes out. Decisions and words are
// in packages of their own:
//
//  1. cluster   the objects of a service, and errors with a remedy
//  2. reach     HTTP to pods through the API server
//  3. view      documents, tables and trees of status, ranks and load
//  4. scaling   the arithmetic behind a pool's number of replicas
//  5. trail     one request through router, prefill and decode
//  6. diagnosis samples to a conclusion with the numbers that led to it
//
// It must not know flags and signals, which cmd/kubectl-sluice has.
package plugin
