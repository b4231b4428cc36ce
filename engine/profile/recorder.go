package profile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/pprof"
	"sync"
)

// Options say what a recording holds, when it is and where it goes.
type Options struct {
	Dir    string // created when it is missing
	Name   string // begins the name of each file; see CheckName
	CPU    bool   // where the processor's time went, from begin to end
	Memory bool   // what is on the heap at the end and what was allocated since the process began

	FromStep int64 // it begins with this step; with the next one if that is over, and 0: at once
	Steps    int64 // it ends by itself after so many; 0: Stop ends it
}

// Steps is what a recording goes by: the steps of a scheduler, numbered from 1.
type Steps interface {
	// AwaitStep waits until step n is over and gives the number of the newest that is; n = 0 waits for none.
	AwaitStep(ctx context.Context, n int64) (newest int64, err error)
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
	// ErrClosed: the process is ending.
	ErrClosed = errors.New("the process is ending: nothing is recorded any more")
	// ErrIdle: there is no recording to stop.
	ErrIdle = errors.New("no profile is being recorded: start one first")
)

// Recorder records one profile of this process at a time. Safe for concurrent use.
type Recorder struct {
	process string // in the names of the files
	log     *slog.Logger

	following sync.WaitGroup // of goroutines that count steps

	mu      sync.Mutex
	running *recording // nil: none
	ended   *result    // of the last recording, if that ended by itself and nobody has asked since
	closed  bool       // Close was called
}

// recording is one that was started and has not ended.
type recording struct {
	Options
	cpu    *os.File // nil without CPU
	begun  bool     // else it waits for its first step
	cancel context.CancelFunc
}

type result struct {
	files []string
	err   error
}

// NewRecorder gives the recorder of this process, which is called process in the names of files. The log hears of recordings that
// end by themselves.
func NewRecorder(process string, log *slog.Logger) *Recorder {
	return &Recorder{process: process, log: log}
}

// Start begins a recording, or lets it wait for its first step. The processor's profile is the process's only one, so an error
// also comes when something else in it records that.
func (r *Recorder) Start(steps Steps, o Options) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case r.running != nil:
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
	ctx, cancel := context.WithCancel(context.Background())
	x := &recording{Options: o, cancel: cancel}
	if o.CPU {
		file, err := os.OpenFile(r.path(o, "cpu"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			cancel()
			return fmt.Errorf("make the profile's file: %w", err)
		}
		x.cpu = file
	}
	if o.FromStep == 0 {
		if err := x.begin(); err != nil {
			_, dropErr := r.finish(x)
			return errors.Join(err, dropErr)
		}
	}
	r.running, r.ended = x, nil
	if o.FromStep > 0 || o.Steps > 0 {
		r.following.Go(func() { r.follow(ctx, steps, x) })
	}
	return nil
}

// begin begins what was started.
func (x *recording) begin() error {
	if x.cpu != nil {
		if err := pprof.StartCPUProfile(x.cpu); err != nil {
			return fmt.Errorf("record the processor: %w", err)
		}
	}
	x.begun = true
	return nil
}

// follow begins and ends a recording that goes by steps. When these end it does too.
func (r *Recorder) follow(ctx context.Context, steps Steps, x *recording) {
	newest, err := steps.AwaitStep(ctx, max(0, x.FromStep-1))
	if err == nil && x.FromStep > 0 {
		r.mu.Lock()
		if r.running == x {
			err = x.begin()
		}
		r.mu.Unlock()
	}
	if err == nil {
		if x.Steps == 0 {
			return
		}
		_, err = steps.AwaitStep(ctx, newest+x.Steps)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running != x {
		return // Stop was before
	}
	files, finishErr := r.finish(x)
	r.running, r.ended = nil, &result{files, errors.Join(err, finishErr)}
	if r.ended.err != nil {
		r.log.Error("a profile ended before its steps were over", "files", files, "err", r.ended.err)
		return
	}
	r.log.Info("a profile was recorded", "files", files)
}

// Stop ends the recording and gives its files: none when it still waited for its first step. It gives those of one that has ended
// by itself, once.
func (r *Recorder) Stop() (files []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.running != nil:
		x := r.running
		r.running = nil
		return r.finish(x)
	case r.ended != nil:
		files, err = r.ended.files, r.ended.err
		r.ended = nil
		return files, err
	default:
		return nil, ErrIdle
	}
}

// Close ends what is being recorded and waits until nobody counts steps any more. Start then gives ErrClosed.
func (r *Recorder) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	if _, err := r.Stop(); err != nil && !errors.Is(err, ErrIdle) {
		r.log.Error("a profile did not end in order", "err", err)
	}
	r.following.Wait()
}

// finish ends a recording and gives its files.
func (r *Recorder) finish(x *recording) (files []string, err error) {
	x.cancel()
	if !x.begun {
		if x.cpu != nil {
			err = errors.Join(x.cpu.Close(), os.Remove(x.cpu.Name()))
		}
		return nil, err
	}
	if x.cpu != nil {
		pprof.StopCPUProfile()
		files = append(files, x.cpu.Name())
		err = x.cpu.Close()
	}
	if !x.Memory {
		return files, err
	}
	runtime.GC() // so that the heap is what lives
	path := r.path(x.Options, "heap")
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
