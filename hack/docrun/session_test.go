package docrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func open(t *testing.T) *Session {
	t.Helper()
	s, err := Open(t.TempDir(), t.TempDir(), os.Environ())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestSession(t *testing.T) {
	s := open(t)
	for _, tc := range []struct {
		name, command string
		want          Result
	}{
		{"output", "echo a; echo b >&2", Result{"a\nb\n", 0}},
		{"status", "(exit 3)", Result{"", 3}},
		{"no newline", "printf a", Result{"a", 0}},
		{"a variable", "a=1", Result{}},
		{"lasts", "echo $a", Result{"1\n", 0}},
		{"input", "cat", Result{}},
		{"a here-document", "cat <<E\nx '\nE", Result{"x '\n", 0}},
		{"a folder", "mkdir f && cd f", Result{}},
		{"lasts too", "basename \"$PWD\"", Result{"f\n", 0}},
		{"background", "sleep 300 & pid=$!", Result{}},
		{"can be ended", "kill $pid && wait $pid 2>/dev/null", Result{"", 143}},
		{"the shell goes on", "echo on", Result{"on\n", 0}},
	} {
		got, err := s.Run(t.Context(), tc.command)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
	}
	got, err := s.Run(t.Context(), "if true\n")
	if err != nil || got.Status == 0 || !strings.Contains(got.Output, "syntax error") {
		t.Errorf("a command that is none: %v, %v", got, err)
	}
	if got, err := s.Run(t.Context(), "echo on"); err != nil || got.Output != "on\n" {
		t.Errorf("after that: %v, %v", got, err)
	}
}

// TestSessionEnds: neither a command that does not end nor one that ends the shell holds the caller, and nothing stays.
func TestSessionEnds(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	file := filepath.Join(t.TempDir(), "pid")
	go func() {
		for {
			if _, err := os.Stat(file); err == nil {
				cancel(why)
				return
			}
		}
	}()
	if _, err := s.Run(ctx, "sleep 300 & echo $! >"+file+".new; mv "+file+".new "+file+"; wait"); !errors.Is(err, why) {
		t.Errorf("it ends with %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(raw), &pid); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); !gone(pid); {
		if time.Now().After(deadline) {
			t.Fatal("what was started in the background still runs")
		}
	}
	s = open(t)
	if _, err := s.Run(t.Context(), "exit 0"); err == nil || !strings.Contains(err.Error(), "it ended the shell") {
		t.Errorf("exit: %v", err)
	}
}

// gone says whether a process has ended; one that nobody has waited for yet has.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err != nil || strings.Contains(string(status), "State:\tZ")
}

func TestRunner(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		block        Block
		want         string // part of the error; "" for none
	}{
		{"as it stands", "", Block{Text: "$ echo PORT\n30000\n$ true\n"}, ""},
		{"another output", "both are told", Block{Text: "$ echo a\nb\n"}, "the page says:\nb\n\nit wrote:\na\n"},
		{"a failure", "also where no output stands", Block{Text: "true\nfalse\n"}, "exit status 1, want 0"},
		{"a failure that is told", "", Block{Mark: Mark{Exit: 1}, Text: "$ true\n$ echo no; false\nno\n"}, ""},
		{"a failure of the first", "the status is of the last command", Block{Mark: Mark{Exit: 1}, Text: "false\nfalse\n"}, "exit status 1, want 0"},
		{"comes with time", "", Block{Mark: Mark{Until: time.Minute}, Text: "$ echo x >>count; wc -l <count\n2\n"}, ""},
		{"does not come", "", Block{Mark: Mark{Until: time.Nanosecond}, Text: "$ echo a\nb\n"}, "the page says"},
		{"an example", "", Block{Mark: Mark{Output: true}, Text: "$ echo a\nb\n"}, ""},
		{"numbers", "", Block{Mark: Mark{Numbers: true}, Text: "$ echo took 17 s\ntook 3.5 s\n"}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.block.Page, tc.block.Line = "p.md", 5
			r := Runner{Session: open(t), Limit: time.Minute, Log: t.Logf, Replace: strings.NewReplacer("PORT", "4711", "30000", "4711").Replace}
			err := r.Run(t.Context(), tc.block)
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: %v", tc.reason, err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "p.md:")):
				t.Errorf("%s: %v, want %q", tc.reason, err, tc.want)
			}
		})
	}
}
