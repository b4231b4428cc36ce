// Package monitoring puts what engines say under load into a real Prometheus database and asks it what people ask: every query
// of the dashboard and every query of docs/diagnosis.md must have an answer, under both spellings of the names. It starts a
// unified engine and a prefill and decode pair with test/harness, and knows the bundle by its files.
package monitoring
