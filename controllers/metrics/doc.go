// Package metrics holds the operator's own series.
//
// It owns the table of families (families.go), from which docs/reference/operator-metrics.md is made and against which the
// operator's rules and dashboard are checked; the counters of what controllers decide (decisions.go); and what objects say
// of themselves, read from the cache at each scrape (objects.go). What a family's series are read from otherwise belongs to
// the package that knows it: samples and proofs to observe, certificates to autoscaling. It must not decide anything, write
// to a cluster or keep a copy of an object.
//
// Package controllers makes it and hands it to the controllers; hack/reference and hack/chart read the table.
package metrics
