package ledger

// ForwardEntry is the first time that the request was in a forward pass. ok is false when it never was.
func (t *Timeline) ForwardEntry() (at Instant, ok bool) {
	s := forwardOf(t.form)
	if s == StageNone {
		return 0, false
	}
	return t.At(s)
}

// PrefillEnd is when the prompt was computed for the first time. ok is false when it never was, and on a decode engine.
func (t *Timeline) PrefillEnd() (at Instant, ok bool) { return t.prefillEnd, t.prefilled }

// FirstToken is when the first output token was there: for the API process the first output batch, for a scheduler the
// end of prefill. ok is false before, and always on a decode engine, whose first token comes from elsewhere.
func (t *Timeline) FirstToken() (at Instant, ok bool) {
	if t.form == APIServer {
		return t.At(StageStreamOutput)
	}
	return t.PrefillEnd()
}

// Finished is when the request ended.
func (t *Timeline) Finished() (at Instant, ok bool) { return t.At(StageDone) }

// EndToEnd is the nanoseconds from start to end. ok is false while the request lives.
func (t *Timeline) EndToEnd() (nanos int64, ok bool) {
	end, ok := t.Finished()
	if !ok {
		return 0, false
	}
	return end.Sub(t.start), true
}

// TimeToFirstToken is the nanoseconds from start to the first output token.
func (t *Timeline) TimeToFirstToken() (nanos int64, ok bool) {
	at, ok := t.FirstToken()
	if !ok {
		return 0, false
	}
	return at.Sub(t.start), true
}

// DecodeTime is the nanoseconds from the first token to the end. ok is false while the request lives, when it had no
// first token, when the difference is 0, and on a prefill engine, which does not decode.
func (t *Timeline) DecodeTime() (nanos int64, ok bool) {
	first, has := t.FirstToken()
	end, done := t.Finished()
	if !has || !done || end.Sub(first) <= 0 || t.form == Prefill {
		return 0, false
	}
	return end.Sub(first), true
}

// TimePerOutputToken is DecodeTime over the tokens after the first, in nanoseconds. ok is false when DecodeTime has no
// value or completionTokens <= 1.
func (t *Timeline) TimePerOutputToken(completionTokens int) (nanos float64, ok bool) {
	decode, ok := t.DecodeTime()
	if !ok || completionTokens <= 1 {
		return 0, false
	}
	return float64(decode) / float64(completionTokens-1), true
}
