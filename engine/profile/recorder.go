package profile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"sync"
)

// Options say what a recording holds and where it goes.
type Options struct {
	Dir    string // created when it is missing
	Name   string // begins the name of each file; see CheckName
	CPU    bool   // where the processor's time went, from Start to Stop
	Memory bool   // what is on the heap at Stop and what was allocated since the process began
}

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// CheckName refuses a name that could leave the directory.
func CheckName(name string) error {
	if !validName.MatchString(name) || name[0] == '.' {
		return errors.New("must be 1 to 100 letters, digits, dots, underscores and dashes, without a dot at the begin")
	}
	return nil
}

// Errors that callers tell apart.
var (
	// ErrRunning: a recording has begun and was not stopped.
	ErrRunning = errors.New("a profile is being recorded: stop it first")
	// ErrIdle: there is no recording to stop.
	ErrIdle = errors.New("no profile is being recorded: start one first")
)

// Recorder records one profile of this process at a time. Safe for concurrent use.
type Recorder struct {
	process string // in the names of the files

	mu      sync.Mutex
	running *Options
	cpu     *os.File // nil unless running with CPU
}

// NewRecorder gives the recorder of this process, which is called process in the names of files.
func NewRecorder(process string) *Recorder { return &Recorder{process: process} }

// Start begins a recording. The processor's profile is the process's only one, so an error also comes when something else
// in it records that.
func (r *Recorder) Start(o Options) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running != nil {
		return ErrRunning
	}
	if err := CheckName(o.Name); err != nil {
		return fmt.Errorf("the profile's name %q %w", o.Name, err)
	}
	if !o.CPU && !o.Memory {
		return errors.New("the profile is of nothing: ask for CPU or memory")
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return fmt.Errorf("make the profile's directory: %w", err)
	}
	if o.CPU {
		file, err := os.OpenFile(r.path(o, "cpu"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("make the profile's file: %w", err)
		}
		if err := pprof.StartCPUProfile(file); err != nil {
			return errors.Join(fmt.Errorf("record the processor: %w", err), file.Close(), os.Remove(file.Name()))
		}
		r.cpu = file
	}
	r.running = &o
	return nil
}

// Stop ends the recording and gives its files.
func (r *Recorder) Stop() (files []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running == nil {
		return nil, ErrIdle
	}
	o := *r.running
	r.running = nil
	if r.cpu != nil {
		pprof.StopCPUProfile()
		files = append(files, r.cpu.Name())
		err = r.cpu.Close()
		r.cpu = nil
	}
	if !o.Memory {
		return files, err
	}
	runtime.GC() // so that the heap is what lives
	path := r.path(o, "heap")
	if heapErr := writeHeap(path); heapErr != nil {
		return files, errors.Join(err, fmt.Errorf("write the profile of the heap: %w", heapErr))
	}
	return append(files, path), err
}

func writeHeap(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("heap").WriteTo(file, 0), file.Close())
}

func (r *Recorder) path(o Options, kind string) string {
	return filepath.Join(o.Dir, fmt.Sprintf("%s-%s-%d.%s.pprof", o.Name, r.process, os.Getpid(), kind))
}
