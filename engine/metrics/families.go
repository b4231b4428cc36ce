package metrics

import "slices"

// The families; families_*.go hold the rows by who fills them. Only what the engine really has is here: a family appears in
// the table together with its mechanism.
//
// A gauge of the scheduler is the state of one rank, so ranks of one replica may be added only over data-parallel ranks;
// tensor- and pipeline-parallel ranks of a replica report the same requests. Counters of events follow the same rule.
var (
	overDP       = []string{"dp_rank"}
	overRanks    = []string{"dp_rank", "tp_rank", "pp_rank"} // of what each rank has for itself
	overEndpoint = []string{"endpoint", "method"}
)

var families = slices.Concat(schedulerFamilies, handoverFamilies, frontFamilies, httpFamilies, traceFamilies, storeFamilies)

func gauge(name, unit, help string, on Engines, by Reports, sumOver []string) *Family {
	return &Family{Name: name, Kind: Gauge, Help: help, Unit: unit, Merge: MostRecent, Engines: on, Reports: by, SumOver: sumOver}
}

func counter(name, unit, help string, on Engines, labels ...string) *Family {
	return &Family{Name: name, Kind: Counter, Help: help, Unit: unit, Labels: labels, Engines: on, SumOver: append(labels, overDP...)}
}

func histogram(name, unit, help string, on Engines, buckets []float64, labels ...string) *Family {
	return &Family{Name: name, Kind: Histogram, Help: help, Unit: unit, Labels: labels, Buckets: buckets, Engines: on, SumOver: append(labels, overDP...)}
}

// labelled makes a gauge one of several series.
func labelled(f *Family, labels ...string) *Family {
	f.Labels, f.SumOver = labels, append(labels, f.SumOver...)
	return f
}

// with makes a family one of ranks that have certain features.
func with(needed Features, f *Family) *Family {
	f.Needs = needed
	return f
}

// cache makes a family one of the prefix cache, whose labels are its type and where it is.
func cache(f *Family) *Family {
	f.Source, f.SumOver = FromCache, []string{"cache_type", "dp_rank"}
	return f
}

// front makes a family one of the API process, which has no ranks.
func front(f *Family) *Family {
	f.Source, f.SumOver = FromFront, f.Labels
	return f
}

func http(f *Family) *Family {
	f.Source, f.SumOver = FromHTTP, f.Labels
	return f
}
