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
	collect func() // runtime.GC, but in tests

	following sync.WaitGroup // of goroutines that count steps

	mu      sync.Mutex // never held while files are written or garbage is collected
	running *recording // nil: none
	ended   *result    // of the last recording, if that ended by itself and nobody has asked since
	closed  bool       // Close was called
}

// recording is one that was started. It is the Recorder's running one until it has ended and its files are there.
type recording struct {
	Options
	cancel context.CancelFunc
	over   chan struct{} // closed when it has ended

	ending bool // somebody ends it, and nobody else may; guarded by Recorder.mu

	work  sync.Mutex // whoever begins or ends it
	cpu   *os.File   // nil without CPU; guarded by work
	begun bool       // else it waits for its first step; guarded by work
	done  bool       // nothing may begin any more; guarded by work
}

// result is what became of a recording.
type result struct {
	files []string
	short error // why there were no more steps, when it should have had more; nothing is wrong with the files
	err   error // what went wrong
	told  bool  // it ended by itself, and then the log hears of it
}

// NewRecorder gives the recorder of this process, which is called process in the names of files. The log hears of recordings that
// end by themselves.
func NewRecorder(process string, log *slog.Logger) *Recorder {
	return &Recorder{process: process, log: log, collect: runtime.GC}
}

// Start begins a recording, or lets it wait for its first step. The processor's profile is the process's only one, so an error
// also comes when something else in it records that.
func (r *Recorder) Start(steps Steps, o Options) error {
	if err := CheckName(o.Name); err != nil {
		return fmt.Errorf("the profile's name %q %w", o.Name, err)
	}
	if !o.CPU && !o.Memory {
		return errors.New("the profile is of nothing: ask for CPU or memory")
	}
	ctx, cancel := context.WithCancel(context.Background())
	x := &recording{Options: o, cancel: cancel, over: make(chan struct{})}
	if err := r.claim(x); err != nil {
		cancel()
		return err
	}
	if err := r.open(x); err != nil {
		r.end(x, &result{}) // nothing was recorded
		return err
	}
	if o.FromStep > 0 || o.Steps > 0 {
		r.following.Go(func() { r.follow(ctx, steps, x) })
	}
	return nil
}

// claim makes a recording the running one.
func (r *Recorder) claim(x *recording) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return ErrClosed
	case r.running != nil:
		return ErrRunning
	}
	r.running, r.ended = x, nil
	return nil
}

// open makes the files that a recording begins with, and begins it unless it waits for a step.
func (r *Recorder) open(x *recording) error {
	x.work.Lock()
	defer x.work.Unlock()
	if x.done {
		return errors.New("the profile was stopped before it began")
	}
	if err := os.MkdirAll(x.Dir, 0o755); err != nil {
		return fmt.Errorf("make the profile's directory: %w", err)
	}
	if x.CPU {
		file, err := os.OpenFile(r.path(x.Options, "cpu"), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return fmt.Errorf("make the profile's file: %w", err)
		}
		x.cpu = file
	}
	if x.FromStep > 0 {
		return nil
	}
	return x.beginLocked()
}

// beginLocked begins what was started, unless it has ended.
func (x *recording) beginLocked() error {
	if x.done {
		return nil
	}
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
	newest, short := steps.AwaitStep(ctx, max(0, x.FromStep-1))
	var err error
	if short == nil && x.FromStep > 0 {
		x.work.Lock()
		err = x.beginLocked()
		x.work.Unlock()
	}
	if short == nil && err == nil {
		if x.Steps == 0 {
			return
		}
		_, short = steps.AwaitStep(ctx, newest+x.Steps)
	}
	of := r.end(x, &result{short: short, err: err, told: true})
	switch {
	case of == nil: // Stop was before
	case of.err != nil:
		r.log.Error("a profile could not be recorded", "files", of.files, "err", of.err)
	case of.short != nil:
		r.log.Info("a profile was recorded up to the last step; it was to have more", "files", of.files, "because", of.short)
	default:
		r.log.Info("a profile was recorded", "files", of.files)
	}
}

// Stop ends the recording and gives its files: none when it still waited for its first step. It gives those of one that has ended
// by itself, once, and waits for one that is ending.
func (r *Recorder) Stop() (files []string, err error) {
	of, err := r.stop()
	if err != nil {
		return nil, err
	}
	return of.files, errors.Join(of.short, of.err)
}

// stop is Stop, with what was short and what went wrong told apart.
func (r *Recorder) stop() (*result, error) {
	for {
		r.mu.Lock()
		x, of := r.running, r.ended
		ending := x != nil && x.ending
		if x == nil {
			r.ended = nil
		}
		r.mu.Unlock()
		switch {
		case x == nil && of == nil:
			return nil, ErrIdle
		case x == nil:
			return of, nil
		case ending:
			<-x.over
		default:
			if of := r.end(x, &result{}); of != nil {
				return of, nil
			}
		}
	}
}

// Close ends what is being recorded and waits until nobody counts steps any more. Start then gives ErrClosed.
func (r *Recorder) Close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	if of, err := r.stop(); err == nil && of.err != nil && !of.told {
		r.log.Error("a profile did not end in order", "err", of.err)
	}
	r.following.Wait()
}

// end ends a recording, unless somebody else does, and then it gives nil: of becomes what became of it, and is remembered for Stop
// if it ended by itself.
func (r *Recorder) end(x *recording, of *result) *result {
	r.mu.Lock()
	mine := r.running == x && !x.ending
	if mine {
		x.ending = true
	}
	r.mu.Unlock()
	if !mine {
		return nil
	}
	files, err := r.finish(x)
	of.files, of.err = files, errors.Join(of.err, err)
	r.mu.Lock()
	r.running = nil
	if of.told {
		r.ended = of
	}
	r.mu.Unlock()
	close(x.over)
	return of
}

// finish writes the files of a recording and gives them. It takes as long as the disk and a collection of garbage do.
func (r *Recorder) finish(x *recording) (files []string, err error) {
	x.cancel()
	x.work.Lock()
	defer x.work.Unlock()
	x.done = true
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
	r.collect() // so that the heap is what lives
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
