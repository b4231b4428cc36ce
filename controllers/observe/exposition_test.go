package observe

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/engine/metrics"
)

// engineText is what an engine of a role exports, with a rank of tp_rank 1 and pp_rank 2.
func engineText(t testing.TB, role v1alpha1.Role) []byte {
	t.Helper()
	text, err := os.ReadFile("../../engine/metrics/testdata/" + role.EngineType() + ".prom")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func roles() []v1alpha1.Role {
	return []v1alpha1.Role{v1alpha1.RolePrefill, v1alpha1.RoleDecode, v1alpha1.RoleUnified}
}

// TestParseExposition reads real expositions, in which every family has a value of its own.
func TestParseExposition(t *testing.T) {
	for _, role := range roles() {
		t.Run(string(role), func(t *testing.T) {
			e, err := parseExposition(engineText(t, role), role)
			if err != nil {
				t.Fatal(err)
			}
			rank, there := e.Ranks[RankID{PP: 2, TP: 1}]
			if !there || len(e.Ranks) != 1 {
				t.Fatalf("ranks %v, want one", e.Ranks)
			}
			if names := rank.missing(role); len(names) > 0 {
				t.Errorf("a whole exposition lacks %v", names)
			}
			if rank.Running == 0 || rank.Waiting == 0 || rank.Tokens == 0 || rank.Iterations == 0 || (rank.Handover == 0) != (role == v1alpha1.RoleUnified) {
				t.Errorf("values of the rank: %+v", rank)
			}
			if len(e.Violations) == 0 {
				t.Error("no laws")
			}
		})
	}
}

// TestRequiredIsInTheTable: a rank is asked for what the table gives its role, and for no more.
func TestRequiredIsInTheTable(t *testing.T) {
	for _, role := range roles() {
		for _, name := range Required(role) {
			f, ok := metrics.Lookup(strings.TrimSuffix(name, "_count"))
			if !ok || !f.Engines.Has(role.EngineType()) || f.Source != metrics.FromScheduler || f.Needs != 0 {
				t.Errorf("%s must have %s, which the table does not give every rank: %+v", role, name, f)
			}
		}
	}
}

func TestParseExpositionOfOthers(t *testing.T) {
	for _, tc := range []struct {
		name, reason, text string
		want               Exposition
		fails              bool
	}{
		{
			name: "Priorities", reason: "single priorities repeat the total",
			text: "# TYPE sglang:num_queue_reqs gauge\nsglang:num_queue_reqs{tp_rank=\"0\",pp_rank=\"0\",priority=\"\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\",pp_rank=\"0\",priority=\"5\"} 3\n",
			want: Exposition{Ranks: map[RankID]RankSeries{{}: {Families: map[string]bool{"sglang:num_queue_reqs": true}, Waiting: 3}}},
		},
		{
			name: "NotANumber", reason: "it is there, and counts nothing",
			text: "# TYPE x gauge\nsglang:num_running_reqs{tp_rank=\"0\",pp_rank=\"0\",dp_rank=\"1\"} NaN\n",
			want: Exposition{Ranks: map[RankID]RankSeries{{DP: 1}: {Families: map[string]bool{"sglang:num_running_reqs": true}}}},
		},
		{
			name: "NoRank", reason: "a series that names no rank is of none", text: "# TYPE x gauge\nsglang:num_running_reqs{tp_rank=\"x\"} 1\nsglang:num_running_reqs 1\n",
			want: Exposition{Ranks: map[RankID]RankSeries{}},
		},
		{
			name: "Bytes", reason: "by how the hand-over ended",
			text: "# TYPE x counter\nsluice_kv_sent_bytes_total{outcome=\"done\"} 7\nsluice_kv_sent_bytes_total{outcome=\"failed\"} 2\nsluice_kv_received_bytes_total{outcome=\"done\"} 5\n",
			want: Exposition{Ranks: map[RankID]RankSeries{}, Sent: KVBytes{7, 2, true}, Received: KVBytes{Done: 5, Known: true}},
		},
		{name: "HTML", reason: "another server", text: "<html><body>hello</body></html>", fails: true},
		{name: "JSON", reason: "another server", text: `{"loads": []}`, fails: true},
		{name: "Empty", reason: "an exporter that ended", text: "", fails: true},
		{name: "Torn", reason: "half a line", text: "# TYPE x gauge\nsglang:num_running_reqs{tp_rank=\"0\"", fails: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseExposition([]byte(tc.text), v1alpha1.RoleDecode)
			if tc.fails {
				if !errors.Is(err, errNoExposition) {
					t.Errorf("got %v, want errNoExposition: %s", err, tc.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got), %s:\n%s", tc.reason, diff)
			}
		})
	}
}

func FuzzParseExposition(f *testing.F) {
	for _, role := range roles() {
		f.Add(engineText(f, role)[:4000])
	}
	f.Add([]byte("# TYPE x gauge\nsluice_ledger_violations_total{law=\"a\"} 1e400\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		e, err := parseExposition(text, v1alpha1.RoleDecode)
		if err != nil {
			return
		}
		for id, r := range e.Ranks {
			if id.DP < 0 || id.PP < 0 || id.TP < 0 || len(r.Families) == 0 {
				t.Errorf("rank %+v has %+v", id, r)
			}
		}
	})
}

func TestRankID(t *testing.T) {
	ids := []RankID{{DP: 1}, {PP: 2, TP: 3}, {}, {PP: 1}}
	slices.SortFunc(ids, RankID.compare)
	var got []string
	for _, id := range ids {
		got = append(got, id.String())
	}
	if diff := cmp.Diff([]string{"0", "0 pp_rank 1", "0 pp_rank 2 tp_rank 3", "1"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
