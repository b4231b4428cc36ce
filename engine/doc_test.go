package engine

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadingOrder: the list names every package of the engine once, numbered without a gap.
func TestReadingOrder(t *testing.T) {
	text, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for i, row := range regexp.MustCompile(`(?m)^//  +(\d+)\. (\w+): .`).FindAllSubmatch(text, -1) {
		if string(row[1]) != strconv.Itoa(i+1) {
			t.Errorf("%s has number %s, want %d", row[2], row[1], i+1)
		}
		listed = append(listed, string(row[2]))
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var present []string
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != "testdata" {
			present = append(present, entry.Name())
		}
	}
	slices.Sort(listed)
	if diff := cmp.Diff(present, listed); diff != "" {
		t.Errorf("doc.go lists other packages than there are (-there +listed)\n%s", diff)
	}
}
