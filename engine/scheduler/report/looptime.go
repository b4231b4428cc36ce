package report

// LoopStage is what the scheduler's loop does. It is in exactly one stage at any moment.
type LoopStage uint8

// The stages, named as they are exposed.
const (
	LoopOther        LoopStage = iota // what no other stage names
	LoopReceive                       // recv_requests: messages, and on ranks that follow the wait for the leader's
	LoopProcessInput                  // process_input_requests: receive, refuse, abort, pause, flush
	LoopPick                          // get_next_batch_to_run: decide what is computed next, and make room for it
	LoopQueue                         // process_queue: transfers of prefill and decode roles, agreement of the ranks
	LoopRun                           // run_batch: launch, and wait for the device
	LoopResult                        // process_batch_result: tokens, finishes, reports, outputs
	LoopCheck                         // sanity_check_cache: verify invariants, in builds that do
	LoopIdle                          // idle: nothing to compute

	NumLoopStages
)

var loopStageNames = [NumLoopStages]string{
	"other", "recv_requests", "process_input_requests", "get_next_batch_to_run", "process_queue", "run_batch", "process_batch_result",
	"sanity_check_cache", "idle",
}

func (s LoopStage) String() string { return loopStageNames[s] }

// ForwardOverlap says whether the device computed during a span of the loop's time.
type ForwardOverlap uint8

// The kinds of overlap.
const (
	OverlapNone    ForwardOverlap = iota // neither when the span began nor when it ended
	OverlapPartial                       // at one of the two
	OverlapFull                          // at both

	NumForwardOverlaps
)

func (o ForwardOverlap) String() string {
	return [NumForwardOverlaps]string{"none", "partial", "full"}[o]
}

// LoopTime is what the scheduler's loop did in a while. The stages sum to the wall time of the while.
type LoopTime struct {
	Iterations int64
	IdleNanos  int64 // with no request and nothing to compute
	CPUNanos   int64 // of the process, all its threads
	StageNanos [NumLoopStages][NumForwardOverlaps]int64
}

// WallNanos is the sum over stages.
func (t *LoopTime) WallNanos() (nanos int64) {
	for s := range t.StageNanos {
		for _, n := range t.StageNanos[s] {
			nanos += n
		}
	}
	return nanos
}
