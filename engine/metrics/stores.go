package metrics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// maxStores is how many files of a directory are read, those of this process besides.
const maxStores = 4096

// stores are the files of a directory that can be read.
//
// Invariants: a file is in at most one of own, readers and refused; no two of own and readers have equal headers; len(readers) <= maxStores; a reader stays until its
// memory is broken.
type stores struct {
	dir     string
	fault   func(f fault, n int) // counts faults
	handles int                  // most handles of processes that are held

	listed  bool                 // the directory was listed once
	own     map[string]*ownStore // by file name: of this process
	readers map[string]*reader   // by file name
	refused map[string]bool      // files that can't be read, which was counted
}

// ownStore is a store of this process.
type ownStore struct {
	store   *Store
	cut     sync.Locker // nil: none
	reader  *reader     // nil: it could not be mapped yet
	missing bool        // its file has gone from the directory; that was counted
}

func newStores(dir string, count func(fault, int)) stores {
	return stores{dir: dir, fault: count, handles: maxHandles, own: map[string]*ownStore{}, readers: map[string]*reader{}, refused: map[string]bool{}}
}

// find looks for files that are new and for processes that have ended. Its error says that there never was a list.
func (s *stores) find() error {
	entries, err := os.ReadDir(s.dir)
	switch {
	case err == nil:
		s.listed = true
		s.compare(entries)
	case !s.listed:
		s.fault(faultList, 1)
		return fmt.Errorf("list the stores of the metrics: %w", err)
	default:
		s.fault(faultList, 1)
	}
	s.look()
	return nil
}

// look finds out which processes have ended, and watches those by a handle that had to go without, as far as there are handles.
func (s *stores) look() {
	lives, handles := make([]*life, 0, len(s.readers)), 0
	for _, r := range s.readers {
		lives = append(lives, &r.life)
	}
	look(lives)
	for _, l := range lives {
		if l.handle >= 0 {
			handles++
		}
	}
	for _, l := range lives {
		if !l.ended && l.handle < 0 && handles < s.handles {
			if *l = watched(l.process, true); l.handle >= 0 {
				handles++
			}
		}
	}
}

// compare holds the directory against what is known of it: it opens what is new, and counts what has gone.
func (s *stores) compare(entries []os.DirEntry) {
	there := make(map[string]bool, len(entries))
	var fresh []string
	for _, e := range entries {
		name := e.Name()
		if !isStore(e) {
			continue
		}
		there[name] = true
		if s.own[name] == nil && s.readers[name] == nil && !s.refused[name] {
			fresh = append(fresh, name)
		}
	}
	for name := range s.refused {
		if !there[name] {
			delete(s.refused, name)
		}
	}
	for name, o := range s.own {
		s.gone(there[name], &o.missing)
	}
	for name, r := range s.readers {
		s.gone(there[name], &r.missing)
	}
	for _, name := range s.admit(fresh) {
		s.open(name)
	}
}

// gone counts a file that is not there any more, once.
func (s *stores) gone(there bool, missing *bool) {
	if !there && !*missing {
		s.fault(faultMissing, 1)
	}
	*missing = !there
}

// admit leaves out what is beyond maxStores, and counts it: of files by the name of a process that does not live the first.
func (s *stores) admit(names []string) []string {
	room := maxStores - len(s.readers)
	if len(names) <= room {
		return names
	}
	s.fault(faultTooMany, len(names)-room)
	living := func(name string) int {
		if _, alive := processStart(pidOf(name)); alive {
			return 0
		}
		return 1
	}
	rank := make(map[string]int, len(names))
	for _, name := range names {
		rank[name] = living(name)
	}
	slices.SortStableFunc(names, func(a, b string) int { return rank[a] - rank[b] })
	return names[:room]
}

// pidOf reads the process id in the name that OpenStore gives to a file, process-id-random; 0: there is none.
func pidOf(name string) int {
	parts := strings.Split(name, "-")
	if len(parts) < 3 {
		return 0
	}
	pid, err := strconv.Atoi(parts[len(parts)-2])
	if err != nil {
		return 0
	}
	return pid
}

// open begins to read a file.
func (s *stores) open(name string) {
	r, err := openReader(filepath.Join(s.dir, name), nil, func(f fault) { s.fault(f, 1) })
	switch {
	case err == nil && !s.single(name, r.process):
		err := &faultError{faultTwice, errors.New("the store of a process that is read already")}
		s.refuse(name, errors.Join(err, r.close()))
	case err == nil:
		r.life = watched(r.process, false) // look gives it a handle
		s.readers[name] = r
	case passing(err):
		s.count(err) // and it is tried again at the next scrape
	default:
		s.refuse(name, err)
	}
}

// single reports whether a store is read from no other file. The file that has the name the store was made with pushes out
// one with another name, which is a copy.
func (s *stores) single(name string, p process) bool {
	for _, o := range s.own {
		if processOf(o.store.header) == p {
			return false
		}
	}
	for other, r := range s.readers {
		if r.process != p {
			continue
		}
		if p.file != fileHash(name) {
			return false
		}
		s.refuse(other, &faultError{faultTwice, errors.New("a copy of " + name)})
	}
	return true
}

// ownReader gives the reader of a store of this process, whose lock is held; nil when it can't be mapped.
func (s *stores) ownReader(o *ownStore) *reader {
	if o.reader != nil {
		return o.reader
	}
	r, err := openReader(o.store.path, o.store.file, func(f fault) { s.fault(f, 1) })
	if err != nil {
		s.count(err)
		return nil
	}
	o.reader = r
	return r
}

// update reads the records that a store has more than before.
func (s *stores) update(r *reader) {
	if r.stopped {
		return
	}
	if err := r.update(); err != nil {
		s.count(err)
		r.stopped = !passing(err) // what was read before stays good
	}
}

// refuse leaves a file alone from now on.
func (s *stores) refuse(name string, err error) {
	s.count(err)
	if r := s.readers[name]; r != nil && r.close() != nil {
		s.fault(faultOpen, 1)
	}
	delete(s.readers, name)
	s.refused[name] = true
}

func (s *stores) count(err error) {
	var fe *faultError
	if errors.As(err, &fe) {
		s.fault(fe.fault, 1)
		return
	}
	s.fault(faultOpen, 1)
}

// close unmaps all files; they are read anew when they are asked for.
func (s *stores) close() error {
	var errs []error
	for name, r := range s.readers {
		errs = append(errs, r.close())
		delete(s.readers, name)
	}
	for _, o := range s.own {
		if o.reader != nil {
			errs = append(errs, o.reader.close())
			o.reader = nil
		}
	}
	return errors.Join(errs...)
}
