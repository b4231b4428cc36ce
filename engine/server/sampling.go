package server

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/sluice-dev/sluice/engine/request"
)

const (
	maxStopBytes     = 4096 // of one stop string; the rank looks for it after every token
	maxStopsOpenAI   = 4    // as OpenAI documents
	maxStopsNative   = 64
	maxStopTokenIDs  = 1024
	maxChoices       = 128 // of one prompt, as OpenAI documents
	maxPenalty       = 2   // of frequency and presence, both signs, and of repetition
	maxLogitBias     = 100 // both signs
	maxLogitBiasKeys = 1024
)

// sampling is what a body says about picking tokens and about the text made from them.
type sampling struct {
	request.Sampling                  // MaxNewTokens is 0 when the body names none
	choices          int              // answers for each prompt, at least 1
	grammar          *request.Grammar // nil: any text
	grammarField     string           // the field that grammar came from
	skipSpecial      bool             // special tokens have no text
	keepStop         bool             // the stop string or token stays in the text
}

// commonSampling reads the fields that all routes share.
func commonSampling(o *object, maxStops int) sampling {
	s := sampling{
		choices:     int(o.integerIn("n", 1, 1, maxChoices)),
		skipSpecial: o.boolean("skip_special_tokens", true), keepStop: o.boolean("no_stop_trim", false),
	}
	o.boolean("spaces_between_special_tokens", true) // byte-level tokens bring their own spaces, so both values mean the same
	s.Temperature = float32(o.number("temperature", 1, 0, 100))
	s.TopP = float32(o.positive("top_p", 1, 1))
	s.TopK = int(o.integerIn("top_k", -1, -1, math.MaxInt32))
	s.MinP = float32(o.number("min_p", 0, 0, 1))
	s.FrequencyPenalty = float32(o.number("frequency_penalty", 0, -maxPenalty, maxPenalty))
	s.PresencePenalty = float32(o.number("presence_penalty", 0, -maxPenalty, maxPenalty))
	if repetition := o.positive("repetition_penalty", 1, maxPenalty); repetition != 1 {
		s.RepetitionPenalty = float32(repetition)
	}
	s.LogitBias = readLogitBias(o)
	s.IgnoreEOS = o.boolean("ignore_eos", false)
	s.Stop = readStops(o, maxStops)
	s.StopTokenIDs = tokenIDs(o, "stop_token_ids")
	if len(s.StopTokenIDs) > maxStopTokenIDs {
		o.failField("stop_token_ids", "must hold at most %d ids, not %d", maxStopTokenIDs, len(s.StopTokenIDs))
	}
	s.grammar, s.grammarField = readGrammar(o)
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

// choice is the sampling of one of several answers to a prompt: a seed counts up, so that they differ and can be repeated.
func (s sampling) choice(number int) sampling {
	if s.Seed != nil && number > 0 {
		seed := *s.Seed + int64(number)
		s.Seed = &seed
	}
	return s
}

func readStops(o *object, most int) []string {
	stops := o.strings("stop")
	if len(stops) > most {
		o.failField("stop", "must hold at most %d strings, not %d", most, len(stops))
	}
	for i, stop := range stops {
		switch {
		case stop == "":
			o.failField("stop", "must not hold an empty string (number %d)", i)
		case len(stop) > maxStopBytes:
			o.failField("stop", "must hold strings of at most %d bytes, but number %d has %d", maxStopBytes, i, len(stop))
		}
	}
	return stops
}

// readLogitBias reads an object of biases by token id, in the order of the ids; nil when there is none.
func readLogitBias(o *object) []request.TokenBias {
	inner := o.object("logit_bias")
	if len(inner.raw) > maxLogitBiasKeys {
		o.failField("logit_bias", "must have at most %d tokens, not %d", maxLogitBiasKeys, len(inner.raw))
		return nil
	}
	var list []request.TokenBias
	for _, name := range slices.Sorted(maps.Keys(inner.raw)) {
		id, err := strconv.ParseInt(name, 10, 32)
		if err != nil || id < 0 || strconv.FormatInt(id, 10) != name {
			o.failField("logit_bias", "must have token ids as keys, not %q", clip(name))
			return nil
		}
		list = append(list, request.TokenBias{Token: int32(id), Bias: float32(inner.number(name, 0, -maxLogitBias, maxLogitBias))})
	}
	slices.SortFunc(list, func(a, b request.TokenBias) int { return int(a.Token) - int(b.Token) })
	return list
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

// refuseUnsupportedSampling refuses what would silently change the meaning of the answer. A field at its neutral value
// passes, as clients send all fields.
func refuseUnsupportedSampling(o *object) {
	if n := o.integer("n", 1); o.integer("best_of", n) != n {
		o.fail(unsupportedField(o.path+"best_of", "leave it out, or send what n is; choose among n answers by their logprobs"))
	}
	if o.integer("beam_width", 1) != 1 {
		o.fail(unsupportedField(o.path+"beam_width", "send 1 or leave it out"))
	}
	for _, f := range []struct{ name, remedy string }{
		{"stop_regex", "leave it out; stop takes strings, stop_token_ids tokens"},
		{"custom_logit_processor", "leave it out; logit_bias takes a bias for each token"},
	} {
		if raw, present := o.value(f.name); present && !isEmpty(raw) {
			o.fail(unsupportedField(o.path+f.name, f.remedy))
		}
	}
}
