// Package diagnose causes faults in real engines and asserts that the diagnosis of kubectl sluice names each of them, and none
// where there is none.
package diagnose
