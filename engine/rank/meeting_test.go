package rank

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestMeetingsThatAreLeftOver: a folder whose owner is dead goes with the next start, nothing else does.
func TestMeetingsThatAreLeftOver(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	mine, err := newMeeting()
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(temp, meetingPrefix+"dead")
	for _, dir := range []string{dead, filepath.Join(temp, "other")} {
		if err := os.MkdirAll(filepath.Join(dir, "below"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	names := func() (list []string) {
		entries, err := os.ReadDir(temp)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name())
		}
		return list
	}
	all := []string{"other", filepath.Base(mine.dir), filepath.Base(dead)}
	slices.Sort(all)
	sweepMeetings(temp, time.Now())
	if got := names(); !slices.Equal(got, all) {
		t.Errorf("%v are there, want %v: an owner may be about to lock a fresh folder", got, all)
	}
	sweepMeetings(temp, time.Now().Add(time.Hour))
	if got, want := names(), slices.DeleteFunc(all, func(n string) bool { return n == filepath.Base(dead) }); !slices.Equal(got, want) {
		t.Errorf("%v are there, want %v", got, want)
	}
	if err := mine.remove(); err != nil {
		t.Error(err)
	}
	if got := names(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("%v are there after the end", got)
	}
}
