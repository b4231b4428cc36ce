package request

import (
	"slices"
	"testing"
)

func TestOutcomes(t *testing.T) {
	for outcome, want := range map[Outcome]int{
		OutcomeStop: 200, OutcomeLength: 200, OutcomeAbortedClient: 499, OutcomeAbortedOperator: 503, OutcomeTimeout: 504, OutcomeRefused: 503,
		OutcomeTooLong: 400, OutcomeInvalid: 400, OutcomeBootstrapFailed: 502, OutcomeTransferFailed: 502, OutcomeInternal: 500, "new": 500,
	} {
		if got := outcome.HTTPStatus(); got != want {
			t.Errorf("status of %s is %d, want %d", outcome, got, want)
		}
	}
}

func TestCommonOutcomes(t *testing.T) {
	var common []Outcome
	for _, o := range Outcomes() {
		if o.Common() {
			common = append(common, o)
		}
	}
	want := []Outcome{OutcomeAbortedClient, OutcomeAbortedOperator, OutcomeTimeout, OutcomeTooLong, OutcomeInvalid}
	if !slices.Equal(want, common) || Outcome("").Common() || Outcome("new").Common() {
		t.Errorf("both halves of a request end in %v, want %v alone", common, want)
	}
}

func TestFakeBootstrap(t *testing.T) {
	for b, want := range map[Bootstrap]bool{
		{Host: FakeBootstrapHost}:                      true,
		{Host: FakeBootstrapHost, Port: 8998}:          true,
		{Host: FakeBootstrapHost, Port: 8998, Room: 1}: false,
		{Host: "10.0.0.1"}:                             false,
	} {
		if got := b.Fake(); got != want {
			t.Errorf("%+v is fake: %t, want %t", b, got, want)
		}
	}
}

func TestFinishString(t *testing.T) {
	for want, f := range map[string]Finish{
		"stop":                                 {Type: FinishStop, Outcome: OutcomeStop, MatchedStop: "x"},
		"abort (too_long): the prompt is long": {Type: FinishAbort, Outcome: OutcomeTooLong, Message: "the prompt is long"},
	} {
		if got := f.String(); got != want {
			t.Errorf("finish reads %q, want %q", got, want)
		}
	}
}
