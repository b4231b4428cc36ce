package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/sluice-dev/sluice/engine/profile"
)

// startProfile begins to record all processes of the replica.
func (s *Server) startProfile(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.controlBody(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	options := s.readProfile(o)
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	if startErr := s.record(r.Context(), e, options); startErr != nil {
		writeError(w, controlError(codeRefused, "nothing is recorded", startErr))
		return
	}
	writeText(w, "Start profiling.\n")
}

// readProfile reads what to record. What only a Python or GPU profiler has is refused where it would change the recording.
func (s *Server) readProfile(o *object) profile.Options {
	options := profile.Options{Dir: o.string("output_dir", s.cfg.ProfilerDir), CPU: true, Memory: true}
	if !filepath.IsAbs(options.Dir) {
		o.failField("output_dir", "must be an absolute path on the engine's machine, not %q", clip(options.Dir))
	}
	options.Name = o.string("profile_id", strconv.FormatInt(s.unixSeconds(s.clock.Now()), 10))
	if prefix := o.string("profile_prefix", ""); prefix != "" {
		options.Name = prefix + "-" + options.Name
	}
	if err := profile.CheckName(options.Name); err != nil {
		o.failField("profile_id", "with profile_prefix before it makes the name %q, which %v", clip(options.Name), err)
	}
	if o.has("activities") {
		options.CPU, options.Memory = false, false
		for i, name := range o.strings("activities") {
			switch strings.ToUpper(name) {
			case "CPU":
				options.CPU = true
			case "MEM":
				options.Memory = true
			case "GPU": // the default of clients that ask for both; there is none to record
			default:
				o.fail(unsupportedField(fmt.Sprintf("activities[%d]", i), "send CPU, MEM or both, not "+clip(name)))
			}
		}
		if !options.CPU && !options.Memory {
			o.failField("activities", "must hold CPU, MEM or both")
		}
	}
	options.FromStep, options.Steps = o.integerIn("start_step", 0, 0, maxSteps), o.integerIn("num_steps", 0, 0, maxSteps)
	if raw, present := o.value("profile_stages"); present && !isEmpty(raw) {
		o.fail(unsupportedField("profile_stages", "leave it out"))
	}
	if o.boolean("profile_by_stage", false) {
		o.fail(unsupportedField("profile_by_stage", "send false or leave it out"))
	}
	if o.boolean("merge_profiles", false) {
		o.fail(unsupportedField("merge_profiles", "send false or leave it out; `go tool pprof` reads several files together"))
	}
	for _, name := range []string{"with_stack", "record_shapes"} {
		o.boolean(name, true) // stacks are always recorded, and there are no shapes
	}
	return options
}

// maxSteps bounds numbers of steps, so that sums of two are numbers.
const maxSteps = 1 << 53

// record starts the recorders of all processes, or of none.
func (s *Server) record(ctx context.Context, e *engine, o profile.Options) error {
	if e.sharesProcess() {
		return e.rank.StartProfile(ctx, o)
	}
	if err := s.profiles.Start(e.rank, o); err != nil {
		return err
	}
	err := e.rank.StartProfile(ctx, o)
	if err != nil { // the ranks have undone theirs
		files, _ := s.profiles.Stop() // the first error is the one to tell
		profile.Discard(files)
	}
	return err
}

// sharesProcess reports whether the rank runs in this process; it has one recorder of the processor then.
func (e *engine) sharesProcess() bool { return e.info.PID == os.Getpid() }

func (s *Server) stopRecording(ctx context.Context, e *engine) (files []string, err error) {
	if !e.sharesProcess() {
		files, err = s.profiles.Stop()
	}
	ofRanks, rankErr := e.rank.StopProfile(ctx)
	return append(files, ofRanks...), errors.Join(err, rankErr)
}

// stopProfile ends the recording and names its files.
func (s *Server) stopProfile(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	files, stopErr := s.stopRecording(r.Context(), e)
	if stopErr != nil {
		what := "the recording does not end"
		if len(files) > 0 {
			what = "the recording has ended in a part of the processes, which wrote " + strings.Join(files, ", ")
		}
		writeError(w, controlError(codeRefused, what, stopErr))
		return
	}
	if len(files) == 0 { // it waited for its first step
		writeText(w, "Stop profiling. Nothing was recorded.\n")
		return
	}
	writeText(w, "Stop profiling. The files are:\n"+strings.Join(files, "\n")+"\n")
}
