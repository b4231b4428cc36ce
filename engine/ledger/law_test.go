package ledger

import "testing"

func TestLawTableIsIndexedByLaw(t *testing.T) {
	if len(lawTable) != int(numLaws)-1 {
		t.Fatalf("%d rows for %d laws", len(lawTable), numLaws-1)
	}
	names := map[string]bool{}
	for i, row := range Laws() {
		if int(row.Law) != i+1 || row.Law.String() != row.Name || names[row.Name] || row.Equation == "" {
			t.Errorf("row %d is %+v", i, row)
		}
		names[row.Name] = true
	}
	if got := LawSchedulerTime.Number(); got != "E6" {
		t.Errorf("the number of the law on the scheduler's time is %s", got)
	}
	if got := numLaws.String(); got != "Law(7)" {
		t.Errorf("a value outside of the table is %q", got)
	}
}
