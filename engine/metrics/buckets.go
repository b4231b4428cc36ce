package metrics

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Bounds of histograms, without +Inf. The exact values are part of a series' identity (its label le), so the lists are
// literal: computing them may differ in the last bit.
var (
	bucketsQueueTime = []float64{
		0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1, 2, 3, 4, 5, 10, 15, 20, 30, 40, 50, 60, 70, 80, 90, 100, 200, 300,
		400, 500, 600, 700, 800, 900, 1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000,
	}
	bucketsStage = []float64{
		0.001, 0.0016200000000000001, 0.0026244000000000007, 0.004251528, 0.006887475360000002, 0.011157710083200004,
		0.018075490334784006, 0.029282294342350097, 0.047437316834607154, 0.07684845327206359, 0.12449449430074302,
		0.20168108076720373, 0.3267233508428701, 0.5292918283654495, 0.8574527619520282, 1.389073474362286,
		2.2502990284669036, 3.6454844261163837, 5.905684770308542, 9.567209327899839, 15.49887911119774, 25.10818416014034,
		40.67525833942735, 65.89391850987231, 106.74814798599316, 172.93199973730896, 280.1498395744405, 453.84274011059364,
		735.2252389791618, 1191.064887146242,
	}
	bucketsTransferSpeed   = []float64{0.1, 0.5, 1, 5, 10, 25, 50, 100, 200, 400}
	bucketsTransferLatency = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000}
	bucketsTransferWait    = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500}
	bucketsTransferSize    = []float64{1, 5, 10, 50, 100, 500, 1000, 5000, 10000}
	bucketsTokens          = []float64{
		100, 300, 500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 10000, 12500, 15000, 17500, 20000,
		22500, 25000, 27500, 30000, 35000, 40000, 60000, 80000, 100000, 200000, 300000, 400000, 600000, 800000, 1000000,
		1100000,
	}
	bucketsTTFT = []float64{0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	bucketsITL  = []float64{
		0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2,
		4, 6, 8,
	}
	bucketsE2E = []float64{
		0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400,
	}
	bucketsFunc = []float64{
		0.05, 0.07500000000000001, 0.1125, 0.16875, 0.253125, 0.3796875, 0.56953125, 0.8542968750000001, 1.2814453125,
		1.9221679687500002, 2.8832519531250003, 4.3248779296875, 6.487316894531251, 9.730975341796876, 14.596463012695313,
		21.89469451904297, 32.84204177856446, 49.26306266784668,
	}
	bucketsDeferredRelease  = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60}
	bucketsGrammarCompile   = []float64{0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 90, 120, 240}
	bucketsGrammarSchemas   = []float64{0, 1, 2, 5, 10, 20, 30, 40, 60, 80, 100, 120, 140, 160, 180, 200, 300, 400, 500, 700, 1000}
	bucketsGrammarSize      = []float64{0, 50, 100, 200, 300, 500, 1000, 2000, 3000, 5000, 10000, 20000, 30000, 50000, 100000}
	bucketsGrammarTraversal = []float64{0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 90, 120, 240}
	bucketsEviction         = []float64{
		0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.02, 0.03, 0.04, 0.05, 0.1, 0.2, 0.5, 1,
	}
	bucketsGetLoads = []float64{0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1}
)

// Buckets replaces the bounds of histograms whose bounds are an option; nil keeps the built-in ones.
type Buckets struct {
	TimeToFirstToken  []float64 // --bucket-time-to-first-token
	InterTokenLatency []float64 // --bucket-inter-token-latency, also of the time per output token
	E2ERequestLatency []float64 // --bucket-e2e-request-latency
	PromptTokens      []float64 // --prompt-tokens-buckets, by ParseBucketRule
	GenerationTokens  []float64 // --generation-tokens-buckets, by ParseBucketRule
}

// ParseBucketRule reads the words of a rule flag: none or "default", "tse middle base count" (bounds around middle at
// distances base, base², …), or "custom v…". nil means the built-in bounds. The error says what to write.
func ParseBucketRule(words []string) ([]float64, error) {
	if len(words) == 0 || len(words) == 1 && words[0] == "default" {
		return nil, nil
	}
	switch words[0] {
	case "tse":
		v, err := parseFloats(words[1:])
		if err != nil {
			return nil, err
		}
		if len(v) != 3 || v[1] <= 1 || v[2] < 1 || v[2] != math.Trunc(v[2]) || v[2] > 1000 {
			return nil, errors.New("tse takes a middle, a base above 1 and a whole count of 1 to 1000, for example: tse 1000 2 8")
		}
		bounds := []float64{v[0]}
		for i := 1; i <= int(v[2]+1)/2; i++ {
			distance := math.Pow(v[1], float64(i))
			bounds = append(bounds, max(0, v[0]-distance), v[0]+distance)
		}
		return checkBounds(uniq(bounds))
	case "custom":
		v, err := parseFloats(words[1:])
		if err != nil {
			return nil, err
		}
		return CheckBuckets(v)
	default:
		return nil, fmt.Errorf("rule %.100q is not known; write default, tse or custom", words[0])
	}
}

// CheckBuckets gives the bounds sorted, or says why they can't be bounds: none, not finite, negative or twice the same.
func CheckBuckets(bounds []float64) ([]float64, error) {
	if len(bounds) == 0 {
		return nil, errors.New("at least one bound is needed: give numbers such as 0.1 0.5 1")
	}
	sorted := slices.Clone(bounds)
	slices.Sort(sorted)
	return checkBounds(sorted)
}

const maxBounds = 512

func checkBounds(sorted []float64) ([]float64, error) {
	if len(sorted) > maxBounds {
		return nil, fmt.Errorf("%d bounds are too many; at most %d are allowed", len(sorted), maxBounds)
	}
	for i, b := range sorted {
		switch {
		case math.IsNaN(b) || math.IsInf(b, 0):
			return nil, fmt.Errorf("bound %v is not finite: leave it out, +Inf is always there", b)
		case b < 0:
			return nil, fmt.Errorf("bound %v is negative: give 0 or more", b)
		case i > 0 && sorted[i-1] == b:
			return nil, fmt.Errorf("bound %v is there twice: name it once", b)
		}
	}
	return sorted, nil
}

func parseFloats(words []string) ([]float64, error) {
	out := make([]float64, len(words))
	for i, w := range words {
		v, err := strconv.ParseFloat(strings.TrimSpace(w), 64)
		if err != nil {
			return nil, fmt.Errorf("%.100q is not a number: give numbers such as 0.1 0.5 1", w)
		}
		out[i] = v
	}
	return out, nil
}

func uniq(v []float64) []float64 {
	slices.Sort(v)
	return slices.Compact(v)
}
