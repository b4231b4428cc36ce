package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// Snap gives the bound of a histogram at which an objective of threshold seconds is measured: the threshold where it is a
// bound, else the largest bound below it, so that nothing slower than the threshold ever counts as good; what lies between
// the two counts as slow. A threshold below all bounds is measured at the smallest, the finest that the histogram can tell.
// bounds is sorted and not empty.
func Snap(threshold float64, bounds []float64) (bound float64, exact bool) {
	i, exact := slices.BinarySearch(bounds, threshold)
	if exact {
		return threshold, true
	}
	return bounds[max(0, i-1)], false
}

// commonBounds gives the bounds that the histogram of a family has on every engine of the service that exports it, sorted.
// Bounds differ where a pool's arguments replace them with flag, such as --bucket-time-to-first-token.
func commonBounds(service *v1alpha1.InferenceService, family, flag string) ([]float64, error) {
	f, ok := metrics.Lookup(family)
	if !ok {
		return nil, fmt.Errorf("not in the table of engine/metrics: %s", family)
	}
	var common []float64
	for i, pool := range exporting(service, f) {
		bounds := f.Buckets
		replaced, err := flagValues(slices.Concat(service.Spec.Engine.Args, pool.Args), flag)
		if err != nil {
			return nil, fmt.Errorf("pool %s: %w", pool.Name, err)
		}
		if replaced != nil {
			bounds = replaced
		}
		if i == 0 {
			common = slices.Clone(bounds)
			continue
		}
		common = slices.DeleteFunc(common, func(b float64) bool { return !slices.Contains(bounds, b) })
	}
	if len(common) == 0 {
		return nil, fmt.Errorf("the pools of the service have no bound of %s in common; give all of them the same %s", family, flag)
	}
	return common, nil
}

// exporting lists the pools whose engines have a family.
func exporting(service *v1alpha1.InferenceService, f *metrics.Family) []v1alpha1.PoolSpec {
	var list []v1alpha1.PoolSpec
	for _, pool := range service.Spec.Pools {
		if f.Engines.Has(pool.Role.EngineType()) {
			list = append(list, pool)
		}
	}
	return list
}

// flagValues reads the numbers of the last occurrence of a flag that takes a list, sorted: --flag 1 2 or --flag=1. nil means
// that it is not there.
func flagValues(args []string, flag string) ([]float64, error) {
	var values []float64
	reading := false
	for _, arg := range args {
		words := []string{arg}
		if name, rest, has := strings.Cut(arg, "="); name == flag {
			values, reading, words = []float64{}, true, nil
			if has {
				words = strings.FieldsFunc(rest, func(r rune) bool { return r == ',' || r == ' ' })
			}
		} else if strings.HasPrefix(arg, "--") {
			reading = false
		}
		if !reading {
			continue
		}
		for _, word := range words {
			value, err := strconv.ParseFloat(word, 64)
			if err != nil {
				return nil, fmt.Errorf("%s has %q, which is not a number; give bounds in seconds, for example %s 0.1 0.5 1", flag, word, flag)
			}
			values = append(values, value)
		}
	}
	if values == nil {
		return nil, nil
	}
	values, err := metrics.CheckBuckets(values)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return values, nil
}

// atMost gives the matcher of a bucket. Prometheus 3 stores whole bounds as 1.0, earlier ones as 1.
func atMost(bound float64) string {
	le := strings.ReplaceAll(number(bound), ".", `\\.`)
	le = strings.ReplaceAll(le, "+", `\\+`)
	if !strings.ContainsAny(le, ".e") {
		le += `(\\.0)?`
	}
	return `le=~"` + le + `"`
}
