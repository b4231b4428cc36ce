// Package sample observes engines and routers over an interval: two scrapes of /metrics, and /v1/loads in between. It owns the
// order and the times of the questions. It must not know how a process is reached, nor what its numbers mean, which package
// diagnosis knows. The command `diagnose` of package plugin and test/diagnose call it.
package sample

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-dev/sluice/engine/loads"
	"github.com/sluice-dev/sluice/plugin/diagnosis"
)

// Getter asks a process: the body of an answer with status 200.
type Getter func(ctx context.Context, path string) (body []byte, err error)

// Schedule says when to ask. Invariants: Interval > 0, Polls >= 1.
type Schedule struct {
	Interval time.Duration // between the two scrapes
	Polls    int           // of /v1/loads, evenly between them
	Now      func() time.Time
	After    func(time.Duration) <-chan time.Time
}

// between calls poll as often as the schedule says, and returns after the interval. What poll takes is not added to it.
func (s Schedule) between(ctx context.Context, poll func() error) error {
	start := s.Now()
	for i := range s.Polls {
		due := start.Add(s.Interval * time.Duration(2*i+1) / time.Duration(2*s.Polls))
		if err := s.until(ctx, due); err != nil {
			return err
		}
		if err := poll(); err != nil {
			return err
		}
	}
	return s.until(ctx, start.Add(s.Interval))
}

func (s Schedule) until(ctx context.Context, due time.Time) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-s.After(due.Sub(s.Now())):
		return nil
	}
}

// Engine observes one engine. pool, role and name go into the observation. A poll that fails is left out when another succeeds.
func Engine(ctx context.Context, get Getter, s Schedule, pool, role, name string) (diagnosis.Observation, error) {
	o := diagnosis.Observation{Pool: pool, Role: role, Engine: name}
	var failed error
	var err error
	o.Before, o.After, o.Seconds, err = scrapes(ctx, get, s, func() error {
		list, err := poll(ctx, get)
		if err != nil {
			failed = err
			return ctx.Err()
		}
		o.Polls = append(o.Polls, list)
		return nil
	})
	if err == nil && len(o.Polls) == 0 {
		err = failed
	}
	return o, err
}

// Router observes one router.
func Router(ctx context.Context, get Getter, s Schedule, name string) (diagnosis.RouterObservation, error) {
	o := diagnosis.RouterObservation{Router: name}
	s.Polls = 0
	var err error
	o.Before, o.After, o.Seconds, err = scrapes(ctx, get, s, nil)
	return o, err
}

func scrapes(ctx context.Context, get Getter, s Schedule, poll func() error) (before, after diagnosis.Exposition, seconds float64, err error) {
	var at [2]time.Time
	if before, at[0], err = scrape(ctx, get, s); err != nil {
		return before, after, 0, err
	}
	if err = s.between(ctx, poll); err != nil {
		return before, after, 0, err
	}
	if after, at[1], err = scrape(ctx, get, s); err != nil {
		return before, after, 0, err
	}
	if seconds = at[1].Sub(at[0]).Seconds(); seconds <= 0 {
		err = errors.New("the clock went back during the interval: try again")
	}
	return before, after, seconds, err
}

// scrape gives the series and the middle of the time that asking for them took.
func scrape(ctx context.Context, get Getter, s Schedule) (diagnosis.Exposition, time.Time, error) {
	from := s.Now()
	body, err := get(ctx, "/metrics")
	if err != nil {
		return diagnosis.Exposition{}, from, err
	}
	at := from.Add(s.Now().Sub(from) / 2)
	e, err := diagnosis.Parse(body)
	return e, at, err
}

func poll(ctx context.Context, get Getter) ([]loads.Load, error) {
	body, err := get(ctx, "/v1/loads?include=all")
	if err != nil {
		return nil, err
	}
	var response loads.Response
	if err := json.Unmarshal(body, &response); err != nil {
		return nil, fmt.Errorf("read /v1/loads: %w", err)
	}
	if len(response.Loads) == 0 {
		return nil, errors.New("read /v1/loads: the engine tells of no rank")
	}
	return response.Loads, nil
}
