package ledger

import "fmt"

// Stage is where a request is. The names of exposed stages are a public contract: the label `stage` and the span names.
type Stage uint8

const (
	// StageNone is the zero value: the timeline has not started.
	StageNone Stage = iota

	// StageTokenize lasts from the request's arrival until its prompt is tokens.
	StageTokenize
	// StageAPIServerDispatch lasts from then until the rank has taken the request over.
	StageAPIServerDispatch
	// StageAwaitOutput lasts from then until the first output batch. Not exposed.
	StageAwaitOutput
	// StageStreamOutput lasts from the first output batch until the answer is complete. Not exposed.
	StageStreamOutput

	// StageDPCDispatch lasts from when the DP controller gets a request until the chosen rank has taken it.
	StageDPCDispatch

	// StageRequestProcess lasts from the scheduler's receipt until the waiting queue.
	StageRequestProcess
	// StagePrefillWaiting is spent in the waiting queue of a unified or prefill engine. A retracted request comes back here.
	StagePrefillWaiting
	// StagePrefillForward lasts from the first chunk of the prompt until its last token is computed. A request that needs one
	// token only goes on to StageDecodeWaiting too, and from there to StageDone: straight to StageDone means cut short.
	StagePrefillForward
	// StageDecodeWaiting lasts from prefill's end until the first decode step (unified), or is spent in the waiting queue
	// (decode).
	StageDecodeWaiting
	// StageDecodeForward lasts from the first decode step until completion or retraction.
	StageDecodeForward

	// StagePrefillPrepare lasts from the scheduler's receipt until the bootstrap queue.
	StagePrefillPrepare
	// StagePrefillBootstrap lasts until the decode engine has shaken hands.
	StagePrefillBootstrap
	// StagePrefillTransferKVCache lasts from prefill's end until the decode engine has all KV.
	StagePrefillTransferKVCache

	// StageDecodePrepare lasts from the scheduler's receipt until the prealloc queue.
	StageDecodePrepare
	// StageDecodeBootstrap is spent in the prealloc queue: handshake, then waiting for pages.
	StageDecodeBootstrap
	// StageDecodeTransferred is spent in the transfer queue: KV is arriving.
	StageDecodeTransferred

	// StageDone says that the request has ended. Every stage may go here; nothing leads out.
	StageDone

	// StageChunkedPrefill is a lap of StagePrefillForward: one chunk.
	StageChunkedPrefill
	// StageDecodeLoop is a lap of StageDecodeForward: one decode step.
	StageDecodeLoop
	// StageFakeOutput is a lap of StageDecodeForward on a decode engine: the first token, which prefill computed.
	StageFakeOutput
	// StageOutputBatch is a lap of StageStreamOutput: the interval between two output batches. Not exposed.
	StageOutputBatch
	// StageDecodeBootstrapHandshake is the first lap of StageDecodeBootstrap: until the peers have met.
	StageDecodeBootstrapHandshake
	// StageDecodeKVAllocationWait is the rest of StageDecodeBootstrap after the handshake: until there are pages. It needs no
	// lap: its length is that of the stage less that of the handshake.
	StageDecodeKVAllocationWait

	// StageRunBatchCPU is what a step costs the scheduler's goroutine before the device computes, within whatever stage the
	// request is in. No timeline holds it: it is of the batch.
	StageRunBatchCPU

	numStages
)

// Form is the path a timeline takes.
type Form uint8

const (
	// APIServer goes tokenize → api_server_dispatch → await_output → stream_output → done.
	APIServer Form = iota
	// DPController goes dpc_dispatch → done. It lies inside of the API process's api_server_dispatch.
	DPController
	// Unified goes request_process → prefill_waiting → prefill_forward → decode_waiting → decode_forward → done; a
	// retraction goes back to prefill_waiting.
	Unified
	// Prefill goes prefill_prepare → prefill_bootstrap → prefill_waiting → prefill_forward → prefill_transfer_kv_cache → done.
	Prefill
	// Decode goes decode_prepare → decode_bootstrap → decode_transferred → decode_waiting → decode_forward → done; a
	// retraction goes back to decode_waiting.
	Decode

	numForms
)

var formNames = [numForms]string{"api_server", "dp_controller", "unified", "prefill", "decode"}

func (f Form) String() string {
	if f < numForms {
		return formNames[f]
	}
	return fmt.Sprintf("Form(%d)", uint8(f))
}

// StageInfo is one row of the stage table.
type StageInfo struct {
	Stage Stage
	Name  string
	// Level is the trace level that a span of the stage needs; 0 for stages that are not exposed.
	Level int
	// Observed lists the forms in which the end of the stage is a sample of per_stage_req_latency_seconds.
	Observed []Form
	// Forms lists the forms that have the stage.
	Forms []Form
	// Parent is the stage whose laps these are; StageNone for stages of their own.
	Parent Stage
	// Exposed says that the name may leave the engine.
	Exposed bool
	// Detail says that it is no part of a timeline, but measured beside it.
	Detail bool
}

// Stages gives the stage table in the order of the enum.
func Stages() []StageInfo { return append([]StageInfo(nil), stageTable[:]...) }

var stageTable = [...]StageInfo{
	{Stage: StageTokenize, Name: "tokenize", Level: 1, Forms: forms(APIServer), Exposed: true},
	{Stage: StageAPIServerDispatch, Name: "api_server_dispatch", Level: 2, Forms: forms(APIServer), Exposed: true},
	{Stage: StageAwaitOutput, Name: "await_output", Forms: forms(APIServer)},
	{Stage: StageStreamOutput, Name: "stream_output", Forms: forms(APIServer)},

	{Stage: StageDPCDispatch, Name: "dpc_dispatch", Level: 2, Forms: forms(DPController), Exposed: true},

	{Stage: StageRequestProcess, Name: "request_process", Level: 2, Forms: forms(Unified), Observed: forms(Unified), Exposed: true},
	{Stage: StagePrefillWaiting, Name: "prefill_waiting", Level: 1, Forms: forms(Unified, Prefill), Exposed: true},
	{Stage: StagePrefillForward, Name: "prefill_forward", Level: 1, Forms: forms(Unified, Prefill), Observed: forms(Unified, Prefill), Exposed: true},
	{Stage: StageDecodeWaiting, Name: "decode_waiting", Level: 1, Forms: forms(Unified, Decode), Observed: forms(Decode), Exposed: true},
	{Stage: StageDecodeForward, Name: "decode_forward", Level: 1, Forms: forms(Unified, Decode), Exposed: true},

	{Stage: StagePrefillPrepare, Name: "prefill_prepare", Level: 1, Forms: forms(Prefill), Exposed: true},
	{Stage: StagePrefillBootstrap, Name: "prefill_bootstrap", Level: 1, Forms: forms(Prefill), Observed: forms(Prefill), Exposed: true},
	{Stage: StagePrefillTransferKVCache, Name: "prefill_transfer_kv_cache", Level: 1, Forms: forms(Prefill), Observed: forms(Prefill), Exposed: true},

	{Stage: StageDecodePrepare, Name: "decode_prepare", Level: 1, Forms: forms(Decode), Observed: forms(Decode), Exposed: true},
	{Stage: StageDecodeBootstrap, Name: "decode_bootstrap", Level: 1, Forms: forms(Decode), Observed: forms(Decode), Exposed: true},
	{Stage: StageDecodeTransferred, Name: "decode_transferred", Level: 1, Forms: forms(Decode), Observed: forms(Decode), Exposed: true},

	{Stage: StageDone, Name: "done", Forms: forms(APIServer, DPController, Unified, Prefill, Decode)},

	{Stage: StageChunkedPrefill, Name: "chunked_prefill", Level: 3, Forms: forms(Unified, Prefill), Observed: forms(Unified, Prefill), Parent: StagePrefillForward, Exposed: true},
	{Stage: StageDecodeLoop, Name: "decode_loop", Level: 3, Forms: forms(Unified, Decode), Parent: StageDecodeForward, Exposed: true},
	{Stage: StageFakeOutput, Name: "fake_output", Level: 3, Forms: forms(Decode), Observed: forms(Decode), Parent: StageDecodeForward, Exposed: true},
	{Stage: StageOutputBatch, Name: "output_batch", Forms: forms(APIServer), Parent: StageStreamOutput},
	{Stage: StageDecodeBootstrapHandshake, Name: "decode_bootstrap_handshake", Level: 1, Forms: forms(Decode), Parent: StageDecodeBootstrap, Exposed: true},
	{Stage: StageDecodeKVAllocationWait, Name: "decode_kv_allocation_wait", Level: 1, Forms: forms(Decode), Parent: StageDecodeBootstrap, Exposed: true},

	{Stage: StageRunBatchCPU, Name: "run_batch_cpu", Level: 4, Forms: forms(Unified, Prefill, Decode), Exposed: true, Detail: true},
}

func forms(f ...Form) []Form { return f }

// StageNamed gives the stage of that name; ok is false when there is none.
func StageNamed(name string) (s Stage, ok bool) {
	for _, row := range stageTable {
		if row.Name == name {
			return row.Stage, true
		}
	}
	return StageNone, false
}

// FormNamed gives the form of that name; ok is false when there is none.
func FormNamed(name string) (f Form, ok bool) {
	for f := range numForms {
		if formNames[f] == name {
			return f, true
		}
	}
	return 0, false
}

// String gives the stage's name as exposed.
func (s Stage) String() string {
	if s > StageNone && s < numStages {
		return stageTable[s-1].Name
	}
	if s == StageNone {
		return "none"
	}
	return fmt.Sprintf("Stage(%d)", uint8(s))
}

// Info gives the stage's row of the table. It panics for a value that is not a stage.
func (s Stage) Info() StageInfo { return stageTable[s-1] }

// moves lists the legal transitions by form; StageDone is legal from everywhere and not repeated here.
var moves = [numForms]map[Stage][]Stage{
	APIServer: {
		StageTokenize:          {StageAPIServerDispatch},
		StageAPIServerDispatch: {StageAwaitOutput},
		StageAwaitOutput:       {StageStreamOutput},
	},
	DPController: {},
	Unified: {
		StageRequestProcess: {StagePrefillWaiting},
		StagePrefillWaiting: {StagePrefillForward},
		StagePrefillForward: {StageDecodeWaiting, StageDecodeForward, StagePrefillWaiting},
		StageDecodeWaiting:  {StageDecodeForward, StagePrefillWaiting},
		StageDecodeForward:  {StagePrefillWaiting},
	},
	Prefill: {
		StagePrefillPrepare:   {StagePrefillBootstrap},
		StagePrefillBootstrap: {StagePrefillWaiting},
		StagePrefillWaiting:   {StagePrefillForward},
		StagePrefillForward:   {StagePrefillTransferKVCache, StagePrefillWaiting},
	},
	Decode: {
		StageDecodePrepare:     {StageDecodeBootstrap},
		StageDecodeBootstrap:   {StageDecodeTransferred},
		StageDecodeTransferred: {StageDecodeWaiting},
		StageDecodeWaiting:     {StageDecodeForward},
		StageDecodeForward:     {StageDecodeWaiting},
	},
}

// firstStage is where a timeline of each form begins.
var firstStage = [numForms]Stage{StageTokenize, StageDPCDispatch, StageRequestProcess, StagePrefillPrepare, StageDecodePrepare}

// stageSet is a set of stages, one bit each.
type stageSet uint32

func (s stageSet) has(x Stage) bool { return s&(1<<x) != 0 }

// legal, laps and observed are the tables above as bit sets, for Move and Lap.
var legal, laps, observed = compile()

func compile() (legal [numForms][numStages]stageSet, laps [numForms]stageSet, observed [numForms]stageSet) {
	for form := range numForms {
		for _, row := range stageTable {
			for _, f := range row.Forms {
				if f != form {
					continue
				}
				if row.Detail {
					continue
				}
				if row.Parent != StageNone {
					laps[form] |= 1 << row.Stage
				} else if row.Stage != StageDone {
					legal[form][row.Stage] |= 1 << StageDone
				}
			}
			for _, f := range row.Observed {
				if f == form {
					observed[form] |= 1 << row.Stage
				}
			}
		}
		for from, to := range moves[form] {
			for _, s := range to {
				legal[form][from] |= 1 << s
			}
		}
	}
	return legal, laps, observed
}
