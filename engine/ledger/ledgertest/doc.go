// Package ledgertest holds a clock for tests that moves only when told. It is called by tests alone.
package ledgertest
