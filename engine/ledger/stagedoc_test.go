package ledger

import "testing"

func TestEveryStageHasWords(t *testing.T) {
	for _, row := range Stages() {
		if doc := row.Stage.Doc(); doc.Start == "" || doc.End == "" || doc.Meaning == "" {
			t.Errorf("stage %s: start %q, end %q, meaning %q: all must be said", row.Name, doc.Start, doc.End, doc.Meaning)
		}
	}
}
