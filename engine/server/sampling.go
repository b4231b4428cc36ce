package server

import (
	"fmt"
	"math"

	"github.com/sluice-dev/sluice/engine/request"
)

const (
	maxStopBytes    = 4096 // of one stop string; the rank looks for it after every token
	maxStopsOpenAI  = 4    // as OpenAI documents
	maxStopsNative  = 64
	maxStopTokenIDs = 1024
)

// sampling is what a body says about picking tokens and about the text made from them.
type sampling struct {
	request.Sampling      // MaxNewTokens is 0 when the body names none
	skipSpecial      bool // special tokens have no text
	keepStop         bool // the stop string or token stays in the text
}

// commonSampling reads the fields that all routes share.
func commonSampling(o *object, maxStops int) sampling {
	s := sampling{skipSpecial: o.boolean("skip_special_tokens", true), keepStop: o.boolean("no_stop_trim", false)}
	s.Temperature = float32(o.number("temperature", 1, 0, 100))
	topP := o.number("top_p", 1, 0, 1)
	if topP <= 0 {
		o.failField("top_p", "must be greater than 0 and at most 1, not %v", topP)
	}
	s.TopP = max(float32(topP), math.SmallestNonzeroFloat32) // what is too small for a float32 still is more than 0
	s.TopK = int(o.integerIn("top_k", -1, -1, math.MaxInt32))
	s.IgnoreEOS = o.boolean("ignore_eos", false)
	s.Stop = o.strings("stop")
	if len(s.Stop) > maxStops {
		o.failField("stop", "must hold at most %d strings, not %d", maxStops, len(s.Stop))
	}
	for i, stop := range s.Stop {
		switch {
		case stop == "":
			o.failField("stop", "must not hold an empty string (number %d)", i)
		case len(stop) > maxStopBytes:
			o.failField("stop", "must hold strings of at most %d bytes, but number %d has %d", maxStopBytes, i, len(stop))
		}
	}
	s.StopTokenIDs = tokenIDs(o, "stop_token_ids")
	if len(s.StopTokenIDs) > maxStopTokenIDs {
		o.failField("stop_token_ids", "must hold at most %d ids, not %d", maxStopTokenIDs, len(s.StopTokenIDs))
	}
	refuseUnsupportedSampling(o)
	return s
}

// openAISampling reads the fields of the OpenAI routes. fallbackMax is used when the body names no maximum; 0 means as
// many as fit.
func openAISampling(o *object, fallbackMax int) sampling {
	s := commonSampling(o, maxStopsOpenAI)
	s.MaxNewTokens = fallbackMax
	for _, name := range []string{"max_tokens", "max_completion_tokens"} { // the newer name wins
		if o.has(name) {
			s.MaxNewTokens = int(o.integerIn(name, 1, 1, math.MaxInt64))
		}
	}
	s.MinNewTokens = int(o.integerIn("min_tokens", 0, 0, math.MaxInt64))
	s.Seed = optionalInteger(o, "seed")
	checkMinimum(o, s.Sampling, "min_tokens")
	return s
}

// nativeSampling reads sampling_params of /generate.
func nativeSampling(o *object) sampling {
	s := commonSampling(o, maxStopsNative)
	s.MaxNewTokens = int(o.integerIn("max_new_tokens", nativeMaxNewTokens, 1, math.MaxInt64))
	s.MinNewTokens = int(o.integerIn("min_new_tokens", 0, 0, math.MaxInt64))
	s.Seed = optionalInteger(o, "sampling_seed")
	checkMinimum(o, s.Sampling, "min_new_tokens")
	return s
}

func checkMinimum(o *object, s request.Sampling, name string) {
	if s.MaxNewTokens > 0 && s.MinNewTokens > s.MaxNewTokens {
		o.failField(name, "must be at most the maximum of new tokens (%d), not %d", s.MaxNewTokens, s.MinNewTokens)
	}
}

func optionalInteger(o *object, name string) *int64 {
	if !o.has(name) {
		return nil
	}
	value := o.integer(name, 0)
	return &value
}

// tokenIDs reads a list of token ids; whether the model has them is checked where its vocabulary is known.
func tokenIDs(o *object, name string) []int32 {
	values := o.integers(name)
	ids := make([]int32, len(values))
	for i, value := range values {
		if value < 0 || value > math.MaxInt32 {
			o.failField(fmt.Sprintf("%s[%d]", name, i), "must be a token id, not %d", value)
			return nil
		}
		ids[i] = int32(value)
	}
	if len(ids) == 0 {
		return nil
	}
	return ids
}

// neutral is a field that changes the answer unless it has one value, and that this engine can't honour.
type neutral struct {
	name   string
	value  float64
	remedy string
}

// refuseUnsupportedSampling refuses what would silently change the meaning of the answer. A field at its neutral value
// passes, as clients send all fields.
func refuseUnsupportedSampling(o *object) {
	for _, f := range []neutral{
		{"n", 1, "send n=1, and one request for each answer"},
		{"best_of", 1, "send best_of=1 or leave it out"},
		{"frequency_penalty", 0, "send 0 or leave it out"},
		{"presence_penalty", 0, "send 0 or leave it out"},
		{"repetition_penalty", 1, "send 1 or leave it out"},
		{"min_p", 0, "send 0 or leave it out"},
	} {
		if value := o.number(f.name, f.value, math.Inf(-1), math.Inf(1)); value != f.value {
			o.fail(unsupportedField(o.path+f.name, f.remedy))
		}
	}
	for _, name := range []string{"json_schema", "regex", "ebnf", "structural_tag"} {
		if o.has(name) {
			o.fail(unsupportedField(o.path+name, "leave it out; the engine has no structured output"))
		}
	}
	if raw, present := o.value("logit_bias"); present && !isEmpty(raw) {
		o.fail(unsupportedField(o.path+"logit_bias", "leave it out"))
	}
}
