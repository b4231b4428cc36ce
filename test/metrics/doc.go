// Package metrics looks at the expositions of running engines from outside: after a load of everything that clients do,
// each follows the contract and nothing is missing; a real Prometheus stores what they say under the names as written; and
// what it costs to say it is measured. It starts built programs through test/harness. `make bench-metrics` runs it.
package metrics
