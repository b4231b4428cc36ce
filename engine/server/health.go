package server

import (
	"context"
	"net/http"

	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// healthPrefix begins the rid of a health check's own request.
const healthPrefix = "HEALTH_CHECK"

// health answers as healthGenerate does, or without a token when the configuration says so.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	if s.cfg.HealthGenerates {
		s.healthGenerate(w, r)
		return
	}
	if err := s.ready(); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// ready refuses outside the serving phase, so that nothing new is routed here.
func (s *Server) ready() *apiError {
	if p := s.currentPhase(); p != phaseServing {
		return failure(http.StatusServiceUnavailable, codeNotReady, "the engine is %s", p)
	}
	return nil
}

// healthGenerate proves that the rank computes: it sends a request for one token, and any output of the rank after that,
// also of another request, is the proof.
func (s *Server) healthGenerate(w http.ResponseWriter, r *http.Request) {
	if err := s.ready(); err != nil {
		writeError(w, err)
		return
	}
	e, err := s.admit()
	if err != nil {
		writeError(w, err)
		return
	}
	defer s.dismiss()
	if err := s.prove(r.Context(), e); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// prove waits for an output of the rank, at most for the configured time.
func (s *Server) prove(ctx context.Context, e *engine) *apiError {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.HealthTimeout)
	defer cancel()
	output := s.outputs.wait()
	spec := sequenceSpec{
		rid: healthPrefix + "_" + newRID(), prompt: []int32{0}, uncounted: true, timeline: s.arrival(),
		sampling: sampling{Sampling: request.Sampling{MaxNewTokens: 1, TopP: 1, TopK: -1, IgnoreEOS: true}},
	}
	if s.cfg.Rank.Disagg.Mode != rank.ModeUnified {
		spec.bootstrap = &request.Bootstrap{Host: request.FakeBootstrapHost}
	}
	q, err := s.submit(ctx, e, spec)
	if err != nil {
		return err
	}
	ended := make(chan *apiError, 1)
	go func() { // may outlive the check: it ends with the request, which this function's cancel aborts, or with the rank
		var err *apiError
		for err == nil && !q.ended {
			_, err = q.next(ctx)
		}
		ended <- err
	}()
	select {
	case <-output:
		return nil
	case err := <-ended:
		if err == nil || ctx.Err() == nil {
			return err
		}
	case <-ctx.Done():
	}
	return failure(http.StatusServiceUnavailable, codeEngineFailed, "the rank gave no output within %v", s.cfg.HealthTimeout)
}
