package rank

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/parallel"
)

// measuredWorld is a world in this process of which the ranks know their numbers, with one DP rank or more beside it.
type measuredWorld struct {
	leader  Client
	clients []Client
	worlds  []*parallel.World
}

func startMeasured(t *testing.T, cfg Config, tp, pp int) *measuredWorld {
	t.Helper()
	m := &measuredWorld{clients: make([]Client, tp*pp)}
	var err error
	if m.worlds, err = parallel.Local(tp, pp); err != nil {
		t.Fatal(err)
	}
	failures := make([]error, len(m.worlds))
	var group sync.WaitGroup
	for i, w := range m.worlds {
		group.Go(func() {
			own := cfg
			own.Rank, own.TPSize, own.PPSize = i, tp, pp
			if m.clients[i], failures[i] = startInProcess(waiting(t), own, w); failures[i] != nil {
				w.Abort(failures[i]) // the others wait for it
			}
		})
	}
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		t.Fatal(err)
	}
	m.leader = m.clients[0]
	t.Cleanup(m.close(t))
	return m
}

func (m *measuredWorld) close(t *testing.T) func() {
	return sync.OnceFunc(func() {
		for _, c := range m.clients {
			_ = c.Close(waiting(t)) // the first one ends the world, and the others say so
		}
		for _, w := range m.worlds {
			_ = w.Close()
		}
	})
}

// value is what a sample counts: of a histogram its samples.
func value(m *dto.Metric) float64 {
	switch {
	case m.GetHistogram() != nil:
		return float64(m.GetHistogram().GetSampleCount())
	case m.GetCounter() != nil:
		return m.GetCounter().GetValue()
	default:
		return m.GetGauge().GetValue()
	}
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := map[string]string{}
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

// TestWhoExports runs the same requests on worlds of every shape, one or two of them, and adds up what the families say as the
// table allows it: over its labels, of any one rank of those that tell the same, it is the truth.
func TestWhoExports(t *testing.T) {
	dir := seededModel(t)
	lengths, news := []int{5, 9, 17, 33}, []int{3, 4, 5, 6}
	prompts, answers := 0, 0
	for i := range lengths {
		prompts, answers = prompts+lengths[i], answers+news[i]
	}
	for _, size := range [][3]int{{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {2, 2, 1}, {2, 1, 2}, {1, 2, 2}} {
		for _, all := range []bool{false, true} {
			tp, pp, dp := size[0], size[1], size[2]
			t.Run(fmt.Sprintf("tp %d, pp %d, dp %d, all %t", tp, pp, dp, all), func(t *testing.T) {
				store := t.TempDir()
				var worlds []*measuredWorld
				for d := range dp {
					cfg := testConfig(dir)
					cfg.Metrics = MetricsConfig{Enabled: true, AllRanks: all, Dir: store}
					if dp > 1 {
						cfg.DPRank, cfg.DPSize = &d, dp
					}
					worlds = append(worlds, startMeasured(t, cfg, tp, pp))
				}
				for d, w := range worlds {
					for i, n := range lengths {
						answer(t, submit(t, w.leader, newRequest(fmt.Sprint("r", d, i), prompt(n)[:n], news[i])))
					}
				}
				info := worlds[0].leader.Info()
				for _, w := range worlds { // the last reports and sums are told at the end
					w.close(t)()
				}
				sums, ranks := addUp(t, store)
				total := float64(dp)
				want := map[string]float64{
					"sglang:realtime_tokens_total":          total * float64(prompts+answers-len(lengths)),
					"sglang:prefill_effective_tokens_total": total * float64(prompts),
					"sglang:queue_time_seconds":             total * float64(len(lengths)),
					"sglang:max_total_num_tokens":           total * float64(info.MaxTotalNumTokens),
					"sglang:num_pages":                      total * float64(info.MaxTotalNumTokens/info.PageSize),
					"sglang:num_running_reqs":               0,
					"sglang:num_queue_reqs":                 0,
					"sglang:kv_used_tokens":                 0,
					"sglang:num_retracted_requests_total":   0,
				}
				for name, truth := range want {
					for rest, sum := range sums[name] {
						if sum != truth {
							t.Errorf("%s of %s is %g, want %g", name, rest, sum, truth)
						}
					}
					if len(sums[name]) == 0 {
						t.Errorf("%s is not there", name)
					}
				}
				var exporting []string
				for p := range pp {
					for r := range tp {
						if r == 0 || all {
							exporting = append(exporting, fmt.Sprintf("tp %d pp %d", r, p))
						}
					}
				}
				slices.Sort(exporting)
				if diff := cmp.Diff(exporting, ranks); diff != "" {
					t.Errorf("ranks that export (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// addUp gives for each family of the scheduler the sums over the labels that the table allows, by the labels that are left,
// and the ranks that have series.
func addUp(t *testing.T, store string) (sums map[string]map[string]float64, ranks []string) {
	t.Helper()
	g := metrics.NewGatherer(store)
	defer g.Close()
	gathered, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums, seen := map[string]map[string]float64{}, map[string]bool{}
	for _, family := range gathered {
		f, ok := metrics.Lookup(family.GetName())
		if !ok || f.Source != metrics.FromScheduler {
			continue
		}
		sums[f.Name] = map[string]float64{}
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			seen[fmt.Sprintf("tp %s pp %s", labels["tp_rank"], labels["pp_rank"])] = true
			for _, name := range f.SumOver {
				delete(labels, name)
			}
			// Pages and constants of one world are the same on all its ranks; what is left tells the ranks apart.
			sums[f.Name][fmt.Sprint(labels)] += value(m)
		}
	}
	return sums, slices.Sorted(maps.Keys(seen))
}

// TestMemoryOfRanks: what each rank has for itself adds up over all of them to what one rank would have.
func TestMemoryOfRanks(t *testing.T) {
	dir := seededModel(t)
	weights := func(tp, pp int) (total, kv float64) {
		store := t.TempDir()
		cfg := testConfig(dir)
		cfg.Metrics = MetricsConfig{Enabled: true, AllRanks: true, Dir: store}
		startMeasured(t, cfg, tp, pp).close(t)()
		sums, _ := addUp(t, store)
		for _, v := range sums["sglang:weight_memory_usage_gb"] {
			total += v
		}
		for _, v := range sums["sglang:kv_cache_memory_usage_gb"] {
			kv += v
		}
		return total, kv
	}
	alone, aloneKV := weights(1, 1)
	for _, size := range [][2]int{{2, 1}, {1, 2}, {2, 2}} {
		total, kv := weights(size[0], size[1])
		if total < alone || total > 1.2*alone { // norms are on every rank
			t.Errorf("tp %d, pp %d: weights take %g GiB, on one rank %g", size[0], size[1], total, alone)
		}
		if diff := kv - aloneKV; diff*diff > 1e-18 {
			t.Errorf("tp %d, pp %d: KV takes %g GiB, on one rank %g", size[0], size[1], kv, aloneKV)
		}
	}
}

// TestStartupIsTheSlowestRanks: all ranks of a world tell the same times, those of whoever took longest.
func TestStartupIsTheSlowestRanks(t *testing.T) {
	w := startMeasured(t, testConfig(seededModel(t)), 2, 2)
	for i, c := range w.clients {
		s := c.Info().Startup
		if s != w.leader.Info().Startup {
			t.Errorf("rank %d started within %+v, the leader within %+v", i, s, w.leader.Info().Startup)
		}
		if s.LoadWeightNanos <= 0 || s.KVCacheNanos <= 0 || s.TotalNanos < s.LoadWeightNanos || s.TotalNanos > int64(time.Hour) {
			t.Errorf("rank %d started within %+v", i, s)
		}
	}
}

// TestDeviceTimerAndEstimates: with both on a rank tells for how long its device computed, by what, and what the model's shapes
// say of it; without them it has none of these families.
func TestDeviceTimerAndEstimates(t *testing.T) {
	dir := seededModel(t)
	for _, on := range []bool{false, true} {
		store := t.TempDir()
		cfg := testConfig(dir)
		cfg.DecodeLogInterval = 4
		cfg.Metrics = MetricsConfig{Enabled: true, Dir: store, DeviceTimer: on, MFU: on}
		began := time.Now()
		w := startMeasured(t, cfg, 1, 1)
		answer(t, submit(t, w.leader, newRequest("a", prompt(20), 30)))
		w.close(t)()
		wall := time.Since(began).Seconds()
		sums, _ := addUp(t, store)
		for _, name := range []string{
			"sglang:forward_execution_seconds_total", "sglang:estimated_flops_per_gpu_total", "sglang:estimated_read_bytes_per_gpu_total",
			"sglang:estimated_write_bytes_per_gpu_total",
		} {
			if (len(sums[name]) > 0) != on {
				t.Errorf("%s is there: %t, want %t", name, len(sums[name]) > 0, on)
			}
			for _, v := range sums[name] {
				if v <= 0 || name == "sglang:forward_execution_seconds_total" && v > wall {
					t.Errorf("%s is %g after %g s", name, v, wall)
				}
			}
		}
		for _, v := range sums["sglang:fwd_occupancy"] { // the engine is idle
			if v == v {
				t.Errorf("occupancy of an idle device is %g", v)
			}
		}
	}
}
