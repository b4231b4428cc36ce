package ledger

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// row is a line of testdata/stages.txt.
type row struct {
	Level                   int
	Forms, Observed, Parent string
}

func TestStageTableAgainstContract(t *testing.T) {
	data, err := os.ReadFile("testdata/stages.txt")
	if err != nil {
		t.Fatal(err)
	}
	want, absent := map[string]row{}, []string{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] == "#":
		case f[0] == "absent":
			absent = f[1:]
		case len(f) == 5:
			level, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatalf("line %q: %v", line, err)
			}
			want[f[0]] = row{level, f[2], f[3], f[4]}
		default:
			t.Fatalf("line %q has %d fields, not 5", line, len(f))
		}
	}

	letters := func(fs []Form) string {
		var s strings.Builder
		for _, f := range fs {
			s.WriteByte("acupd"[f])
		}
		if s.Len() == 0 {
			return "-"
		}
		return s.String()
	}
	got := map[string]row{}
	for _, info := range Stages() {
		if !info.Exposed {
			if info.Level != 0 || info.Observed != nil {
				t.Errorf("%s is not exposed but has a level or is observed", info.Name)
			}
			continue
		}
		r := row{info.Level, letters(info.Forms), letters(info.Observed), "-"}
		if info.Parent != StageNone {
			r.Parent = info.Parent.String()
		}
		got[info.Name] = r
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("stage table (-contract +code):\n%s", diff)
	}
	for _, name := range absent {
		if _, ok := got[name]; ok {
			t.Errorf("stage %s is in the table, and also listed as absent", name)
		}
	}
}

func TestStageTableIsIndexedByStage(t *testing.T) {
	if len(stageTable) != int(numStages)-1 {
		t.Fatalf("%d rows for %d stages", len(stageTable), numStages-1)
	}
	for s := StageNone + 1; s < numStages; s++ {
		if stageTable[s-1].Stage != s {
			t.Errorf("row %d holds stage %d", s-1, stageTable[s-1].Stage)
		}
		if s.Info().Name != s.String() || s.String() == "" {
			t.Errorf("stage %d has the name %q", s, s)
		}
	}
	if got := StageNone.String(); got != "none" {
		t.Errorf("StageNone is %q", got)
	}
	if got := numStages.String(); !strings.HasPrefix(got, "Stage(") {
		t.Errorf("a value outside of the table is %q", got)
	}
}

// Every stage of a form is reached from its first one, and every one leads to StageDone.
func TestMovesReachEveryStage(t *testing.T) {
	for form := range numForms {
		reached := stageSet(1 << firstStage[form])
		for range numStages {
			for s := range numStages {
				if reached.has(s) {
					reached |= legal[form][s]
				}
			}
		}
		for _, info := range stageTable {
			for _, f := range info.Forms {
				if f == form && info.Parent == StageNone && !info.Detail && !reached.has(info.Stage) {
					t.Errorf("%s: %s can't be reached", form, info.Name)
				}
			}
		}
		for s := range numStages {
			if reached.has(s) && s != StageDone && !legal[form][s].has(StageDone) {
				t.Errorf("%s: %s does not lead to done", form, s)
			}
		}
		if legal[form][StageDone] != 0 {
			t.Errorf("%s: something follows done", form)
		}
	}
}
