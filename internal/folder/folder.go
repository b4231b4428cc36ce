package folder

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Folder is a folder that its owner holds a lock on. The system takes the lock back when the owner dies, however it dies, and
// in whatever container: a folder whose lock is free has no owner any more.
type Folder struct {
	Path string
	lock *os.File // nil where the file system has no locks, and then nobody sweeps there either
}

// Make makes an empty folder that this user alone can use, in base or, when that is empty, in the system's temporary
// directory. Its name begins with prefix.
func Make(base, prefix string) (*Folder, error) {
	for {
		dir, err := os.MkdirTemp(base, prefix)
		if err != nil {
			return nil, err
		}
		lock, err := lockOf(dir)
		switch {
		case err == nil && is(lock, dir):
			return &Folder{Path: dir, lock: lock}, nil
		case err == nil: // a sweep came between the two calls and is over
			_ = lock.Close()
		case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.EWOULDBLOCK): // a sweep came between the two calls
		case errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.ENOLCK), errors.Is(err, unix.EINVAL):
			return &Folder{Path: dir}, nil
		default:
			return nil, errors.Join(err, os.RemoveAll(dir))
		}
	}
}

// Remove removes the folder with all that is in it.
func (f *Folder) Remove() error {
	err := os.RemoveAll(f.Path)
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	return err
}

// Sweep removes the folders in base, or in the system's temporary directory, that were made with prefix and have no owner
// any more. spare says which stay all the same; nil: none. It is a courtesy: what can't be read or removed stays.
func Sweep(base, prefix string, spare func(dir string) bool) {
	if base == "" {
		base = os.TempDir()
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		dir := filepath.Join(base, e.Name())
		lock, err := lockOf(dir)
		if err != nil {
			continue // its owner lives, or it is another user's, or somebody was faster
		}
		if spare == nil || !spare(dir) {
			_ = os.RemoveAll(dir) // what is another user's stays
		}
		_ = lock.Close() // nothing was written to it
	}
}

// lockOf takes the lock of a folder, which closing it gives back; unix.EWOULDBLOCK when another has it.
func lockOf(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// is reports whether path still leads to the open folder.
func is(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(open, there)
}
