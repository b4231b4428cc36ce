package ledger

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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

// Every law has its section in docs/ledger.md, with its equation and with exactly the tests that have its number; nothing else has
// a section or such a test.
func TestEveryLawIsDescribedAndTested(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(root + "/docs/ledger.md")
	if err != nil {
		t.Fatal(err)
	}
	described, equations := map[string][]string{}, map[string]string{}
	numbered := regexp.MustCompile("TestE([0-9]+)[A-Z][A-Za-z]*")
	number := ""
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "## ") {
			number = ""
			if heading := regexp.MustCompile(`^## (E[0-9]+): (\S+)$`).FindStringSubmatch(strings.TrimSpace(line)); heading != nil {
				number = heading[1]
				described[number] = []string{heading[2]}
			}
		}
		if number == "" {
			continue
		}
		if equations[number] == "" && strings.HasPrefix(line, "    ") {
			equations[number] = strings.TrimSpace(line)
		}
		described[number] = append(described[number], numbered.FindAllString(line, -1)...)
	}
	tested := map[string][]string{}
	for _, row := range Laws() {
		tested[row.Law.Number()] = []string{row.Name}
		if equations[row.Law.Number()] != row.Equation {
			t.Errorf("docs/ledger.md has the equation %q for %s, the table %q", equations[row.Law.Number()], row.Law.Number(), row.Equation)
		}
		want := fmt.Sprintf("| %s | `%s` | %s |", row.Law.Number(), row.Name, row.Equation)
		if !strings.Contains(string(text), want) {
			t.Errorf("the table of docs/ledger.md has no row %q", want)
		}
	}
	declared := regexp.MustCompile(`(?m)^func (TestE([0-9]+)[A-Z][A-Za-z]*)\(`)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return filepath.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, m := range declared.FindAllStringSubmatch(string(source), -1) {
			tested["E"+m[2]] = append(tested["E"+m[2]], m[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []map[string][]string{described, tested} {
		for number, list := range m {
			slices.Sort(list[1:])
			m[number] = list
			if len(list) < 2 {
				t.Errorf("%s has no test", number)
			}
		}
	}
	if diff := cmp.Diff(described, tested); diff != "" {
		t.Errorf("names and tests of the laws (-docs/ledger.md +code):\n%s", diff)
	}
}
