package ledger

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryStageHasWords(t *testing.T) {
	for _, row := range Stages() {
		if doc := row.Stage.Doc(); doc.Start == "" || doc.End == "" || doc.Meaning == "" {
			t.Errorf("stage %s: start %q, end %q, meaning %q: all must be said", row.Name, doc.Start, doc.End, doc.Meaning)
		}
	}
}

func TestPaths(t *testing.T) {
	want := map[Form][]Stage{
		APIServer:    {StageTokenize, StageAPIServerDispatch, StageAwaitOutput, StageStreamOutput, StageDone},
		DPController: {StageDPCDispatch, StageDone},
		Unified:      {StageRequestProcess, StagePrefillWaiting, StagePrefillForward, StageDecodeWaiting, StageDecodeForward, StageDone},
		Prefill:      {StagePrefillPrepare, StagePrefillBootstrap, StagePrefillWaiting, StagePrefillForward, StagePrefillTransferKVCache, StageDone},
		Decode:       {StageDecodePrepare, StageDecodeBootstrap, StageDecodeTransferred, StageDecodeWaiting, StageDecodeForward, StageDone},
	}
	got := map[Form][]Stage{}
	for form := range numForms {
		got[form] = form.Path()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-want +got):\n%s", diff)
	}
}
