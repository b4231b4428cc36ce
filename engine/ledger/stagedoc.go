package ledger

import "slices"

// StageDoc says in words what a stage is, for readers of docs/stages.md and of a timeline.
type StageDoc struct {
	Start   string // what begins it
	End     string // what ends it; the end of a request ends any stage
	Meaning string // what a long one says
}

// Doc gives the words about a stage. It panics for a value that is not a stage.
func (s Stage) Doc() StageDoc { return stageDocs[s-1] }

// Path gives the stages of a form in the order in which a request passes them that nothing sends back, StageDone included.
func (f Form) Path() []Stage {
	path := []Stage{firstStage[f]}
	for {
		next := moves[f][path[len(path)-1]]
		if len(next) == 0 || slices.Contains(path, next[0]) {
			return append(path, StageDone)
		}
		path = append(path, next[0])
	}
}

var stageDocs = [numStages - 1]StageDoc{
	StageTokenize - 1: {
		"the request has arrived", "its prompt is tokens",
		"Reading the body, the chat template and the tokenizer. Grows with the length of the prompt and with a short CPU.",
	},
	StageAPIServerDispatch - 1: {
		"the prompt is tokens", "the rank has taken the request over",
		"Placement among data-parallel replicas and the way to the rank. Long when the scheduler reads its input late.",
	},
	StageAwaitOutput - 1: {
		"the rank has taken the request over", "the first output batch is here",
		"All that the scheduler does until the first token; its own timeline has the parts.",
	},
	StageStreamOutput - 1: {
		"the first output batch is here", "the answer is complete",
		"Decoding as the client sees it.",
	},

	StageDPCDispatch - 1: {
		"the DP controller has the request", "a replica is chosen and has taken it over",
		"Placement among data-parallel replicas, and the way to the chosen one.",
	},

	StageRequestProcess - 1: {
		"the scheduler has received the request", "it is in the waiting queue",
		"Checks, and the compilation of a grammar where the answer has one.",
	},
	StagePrefillWaiting - 1: {
		"the waiting queue takes the request, also after a retraction", "its first chunk is in a batch",
		"Queueing. queue_time_seconds has a sample of the first wait; a request's own queue time adds up all of them.",
	},
	StagePrefillForward - 1: {
		"the first chunk is in a batch", "the last token of the prompt is computed",
		"Computing the prompt, with the steps of other requests between its chunks.",
	},
	StageDecodeWaiting - 1: {
		"unified: the prompt is computed; decode: the KV is here and the waiting queue has the request", "the first decode step with it begins",
		"Waiting for a place in the running batch.",
	},
	StageDecodeForward - 1: {
		"the first decode step with the request begins", "the last token is sampled, or the request is retracted",
		"Generating tokens one after another.",
	},

	StagePrefillPrepare - 1: {
		"the scheduler has received the request", "it is in the bootstrap queue",
		"Checks, and the compilation of a grammar, on a prefill engine.",
	},
	StagePrefillBootstrap - 1: {
		"the bootstrap queue takes the request", "the decode engine has come and has pages for the prompt",
		"Waiting for the decode engine. Long when it has no memory left, or does not come.",
	},
	StagePrefillTransferKVCache - 1: {
		"the prompt is computed", "the decode engine has all of its KV",
		"What of the transfer the forward passes did not hide.",
	},

	StageDecodePrepare - 1: {
		"the scheduler has received the request", "it is in the prealloc queue",
		"Checks, and the compilation of a grammar, on a decode engine.",
	},
	StageDecodeBootstrap - 1: {
		"the prealloc queue takes the request", "both engines have met and pages for the prompt are allocated",
		"The bootstrap, then the wait for KV memory; kv_transfer_bootstrap_ms and kv_transfer_alloc_ms tell them apart.",
	},
	StageDecodeTransferred - 1: {
		"pages are allocated and the transfer queue has the request", "all KV is here",
		"Waiting for the prefill engine to compute and send the prompt's KV.",
	},

	StageDone - 1: {
		"the request has ended", "never",
		"The end. Nothing leads out of it.",
	},

	StageChunkedPrefill - 1: {
		"the chunk is in a batch", "it is computed",
		"One chunk of a prompt that was cut.",
	},
	StageDecodeLoop - 1: {
		"the step before has ended", "the step has ended",
		"One decode step: what a token costs, with all that the scheduler does between steps.",
	},
	StageFakeOutput - 1: {
		"the request is in its first batch on the decode engine", "its first token is told",
		"The token that the prefill engine sampled goes out without a forward pass.",
	},
	StageOutputBatch - 1: {
		"the batch before is here", "the batch is here",
		"The interval of which inter_token_latency_seconds is made.",
	},
	StageDecodeBootstrapHandshake - 1: {
		"the prealloc queue takes the request", "both engines have met",
		"Finding and meeting the prefill engine.",
	},
	StageDecodeKVAllocationWait - 1: {
		"both engines have met", "pages for the prompt are allocated",
		"Waiting for KV memory on the decode engine.",
	},
	StageRunBatchCPU - 1: {
		"the scheduler prepares the step", "the step is launched",
		"What the scheduler itself does for a step.",
	},
}
