package rank

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	meetingPrefix = "sluice-world-"
	// meetingAge is how long a folder that nobody has locked is left alone: its owner may be about to.
	meetingAge = 10 * time.Second
)

// meeting is the private folder in which the ranks of a node meet. Its owner holds a lock on it, which the system takes
// back when the owner dies: a folder without one is left over, and the next that makes a folder removes it.
type meeting struct {
	dir  string
	lock *os.File
}

func newMeeting() (m *meeting, err error) {
	sweepMeetings(os.TempDir(), time.Now())
	dir, err := os.MkdirTemp("", meetingPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a folder where they meet: %w", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the folder where they meet: %w", err), os.RemoveAll(dir))
	}
	return &meeting{dir: dir, lock: lock}, nil
}

// remove gives the folder back; the ranks have met or never will.
func (m *meeting) remove() error { return errors.Join(os.RemoveAll(m.dir), m.lock.Close()) }

// lockFolder gives the lock of a folder, which closing it gives back; unix.EWOULDBLOCK when another process has it.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// sweepMeetings removes what is certain to be left over. It is a courtesy: what can't be read or removed stays.
func sweepMeetings(temp string, now time.Time) {
	entries, err := os.ReadDir(temp)
	if err != nil {
		return
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !e.IsDir() || !strings.HasPrefix(e.Name(), meetingPrefix) || now.Sub(info.ModTime()) < meetingAge {
			continue
		}
		dir := filepath.Join(temp, e.Name())
		lock, err := lockFolder(dir)
		if err != nil {
			continue // its owner lives, or it is another user's
		}
		_ = os.RemoveAll(dir) // somebody may have been faster
		_ = lock.Close()      // it goes with the folder
	}
}
