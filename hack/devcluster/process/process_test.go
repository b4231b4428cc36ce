package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseStat(t *testing.T) {
	tail := strings.Repeat(" 0", 18)
	type result struct {
		State byte
		Ticks uint64
		OK    bool
	}
	tests := []struct {
		name, reason, stat string
		want               result
	}{
		{"plain", "the common case", "7 (etcd) S" + tail + " 4242 1 2 3", result{'S', 4242, true}},
		{"spaces and parentheses", "a program may name itself anything", "7 (a) b) (c) R" + tail + " 17 1", result{'R', 17, true}},
		{"zombie", "the state is kept", "7 (x) Z" + tail + " 9", result{'Z', 9, true}},
		{"short", "a cut line is refused", "7 (x) S 0 0", result{}},
		{"no name", "not a stat line", "7 S 0", result{}},
		{"no number", "not a stat line", "7 (x) S" + tail + " soon", result{}},
		{"empty", "nothing at all", "", result{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			state, ticks, err := parseStat([]byte(test.stat))
			if diff := cmp.Diff(test.want, result{state, ticks, err == nil}); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("7 (a) b) S" + strings.Repeat(" 1", 30)))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, stat []byte) {
		_, _, _ = parseStat(stat) // Must not panic.
	})
}

func TestIdentity(t *testing.T) {
	self, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	reused, otherBoot := self, self
	reused.StartTicks++
	otherBoot.BootID = "another"
	tests := []struct {
		name, reason string
		id           Identity
		alive        bool
	}{
		{"self", "this test runs", self, true},
		{"reused id", "the process that has the id now started at another time", reused, false},
		{"before a reboot", "start times of two boots are not comparable", otherBoot, false},
		{"nothing recorded", "the zero identity names no process", Identity{}, false},
		{"process groups", "a negative id must never reach a signal", Identity{PID: -1}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.id.Alive(); got != test.alive {
				t.Errorf("alive is %t, want %t: %s", got, test.alive, test.reason)
			}
			if test.alive {
				return
			}
			if err := test.id.Stop(t.Context(), time.Second); err != nil {
				t.Errorf("stop of a process that is gone: %v", err)
			}
		})
	}
}

func TestStop(t *testing.T) {
	tests := []struct {
		name, reason, script string
		detached             bool
	}{
		{"polite", "a program that obeys SIGTERM ends in the grace period", `echo ready; exec sleep 1000`, true},
		{"stubborn", "one that does not is killed after it", `trap "" TERM; echo ready; while :; do sleep 1000; done`, true},
		{"tied", "tied programs are stopped the same way", `echo ready; exec sleep 1000`, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			command := Command{Path: shell(t), Args: []string{"-c", test.script}, Dir: t.TempDir(), Log: log}
			start := StartTied
			if test.detached {
				start = StartDetached
			}
			running, err := start(command)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = running.Kill(context.Background()) })
			poll(t, "the program is ready", func() bool {
				data, err := os.ReadFile(log)
				return err == nil && strings.Contains(string(data), "ready")
			})
			if !running.Alive() {
				t.Fatalf("a running program is not alive")
			}
			if err := running.Stop(t.Context(), 200*time.Millisecond); err != nil {
				t.Fatal(err)
			}
			<-running.Exited()
			if running.Alive() {
				t.Errorf("program is alive after stop: %s", test.reason)
			}
			if running.Err() == nil {
				t.Errorf("a stopped program ended with status 0")
			}
		})
	}
}

// TestTiedDiesWithParent starts this test program again as a parent, kills it, and waits for its child to die.
func TestTiedDiesWithParent(t *testing.T) {
	if file := os.Getenv("PROCESS_TEST_PARENT"); file != "" {
		running, err := StartTied(Command{Path: shell(t), Args: []string{"-c", "exec sleep 1000"}, Dir: ".", Log: file + ".log"})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(fmt.Sprint(running.PID)), 0o600); err != nil {
			t.Fatal(err)
		}
		<-running.Exited()
		return
	}
	file := filepath.Join(t.TempDir(), "pid")
	parent := exec.Command(os.Args[0], "-test.run=^TestTiedDiesWithParent$")
	parent.Env = append(os.Environ(), "PROCESS_TEST_PARENT="+file)
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child Identity
	poll(t, "the child runs", func() bool {
		data, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		var pid int
		if _, err := fmt.Sscan(string(data), &pid); err != nil {
			return false
		}
		child, err = Of(pid)
		return err == nil
	})
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	poll(t, "the child ends with its parent", func() bool { return !child.Alive() })
}

func TestStartReportsMissingProgram(t *testing.T) {
	_, err := StartDetached(Command{Path: "/no/such/program", Dir: t.TempDir(), Log: filepath.Join(t.TempDir(), "log")})
	if err == nil {
		t.Fatal("start of a missing program succeeded")
	}
}

func shell(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("sh")
	if err != nil {
		t.Fatalf("these tests need a shell: %v", err)
	}
	return path
}

// poll waits until the condition holds.
func poll(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited too long until %s", what)
		case <-ticker.C:
		}
	}
}
