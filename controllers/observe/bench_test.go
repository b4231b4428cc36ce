package observe

import (
	"fmt"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

	"github.com/sluice-dev/sluice/engine/loads"
)

// BenchmarkAnnounce looks for changes in 2,000 pools of one or two engines, which happens once an interval.
func BenchmarkAnnounce(b *testing.B) {
	store := NewStore(testingclock.NewFakePassiveClock(epoch), 2*time.Second)
	var targets []target
	for i := range 3000 {
		t := podTarget(fmt.Sprintf("pool-%d", i%2000), fmt.Sprintf("pod-%d", i), fmt.Sprint(i))
		targets = append(targets, t)
	}
	store.sync(targets)
	for _, t := range targets {
		store.put(t.pod, t.uid, epoch, []loads.Load{{NumRunningReqs: 1, Utilization: 0.5, TokenUsage: 0.2, GenThroughput: 30}}, nil)
	}
	pools := store.poolNames()
	b.ReportAllocs()
	for b.Loop() {
		store.announce(pools)
	}
}

// BenchmarkParse reads an answer with every section.
func BenchmarkParse(b *testing.B) {
	body := []byte(`{"timestamp":"2026-11-30T12:00:00Z","version":"1","accelerator":"cpu","num_accelerators":1,"loads":[{"timestamp":1,"dp_rank":0,"num_running_reqs":7,"num_waiting_reqs":9,"num_used_tokens":4096,"num_total_tokens":5000,"max_total_num_tokens":8192,"token_usage":0.5,"gen_throughput":210.55,"cache_hit_rate":0.125,"utilization":0.5556,"disaggregation":{"mode":"decode","decode_prealloc_queue_reqs":2},"queues":{"waiting":3}}]}`)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parse(body); err != nil {
			b.Fatal(err)
		}
	}
}
