package bench

import (
	"errors"
	"fmt"
	"time"
)

// follower reads the chunks of one answer into its record.
type follower struct {
	record *Record
	epoch  time.Time
	api    API
	cancel *Cancel // nil: not cancelled

	chunks   int           // with output
	last     time.Duration // time of the last chunk that told anything
	output   time.Duration // time of the last chunk with output
	finished bool          // the reason of the end came
}

// event takes one event of a stream.
func (f *follower) event(data []byte) error {
	now := time.Since(f.epoch)
	c, err := f.read(data)
	if err != nil {
		return err
	}
	r := f.record
	tokens := 1 // of this chunk
	switch {
	case c.usage:
		if c.output && (r.Counted || f.chunks == 0) { // else the tokens before are not known
			tokens = c.completion - r.OutputTokens
		}
		f.count(c)
	case c.output && !r.Counted:
		r.OutputTokens++
	}
	if c.finish != "" {
		f.finished = true
	}
	if !c.output && (c.finish == "" || f.chunks > 0) {
		if c.finish != "" {
			f.last = now
		}
		return nil
	}
	f.last = now
	switch {
	case f.chunks == 0: // the first output, or an end without any
		r.First = &now
	case tokens < 1: // nothing new, such as a chunk that only repeats
		return nil
	default:
		f.gaps(tokens, now-f.output)
	}
	f.output = now
	f.chunks++
	if f.cancel != nil && f.cancel.Chunks > 0 && f.chunks >= f.cancel.Chunks && !f.finished {
		return errCancelled
	}
	return nil
}

// mostPerChunk bounds the gaps that a server can make up.
const mostPerChunk = 1 << 12

// gaps records the gap before a chunk of so many tokens as one for each.
func (f *follower) gaps(tokens int, gap time.Duration) {
	for range min(tokens, mostPerChunk) {
		f.record.Gaps = append(f.record.Gaps, gap/time.Duration(tokens))
	}
}

// whole takes an answer that was not streamed.
func (f *follower) whole(data []byte) error {
	c, err := f.read(data)
	if err != nil {
		return err
	}
	f.last = time.Since(f.epoch)
	if c.usage {
		f.count(c)
	}
	return nil
}

// read reads a chunk and turns an end that is a failure into one.
func (f *follower) read(data []byte) (chunk, error) {
	c, err := readChunk(f.api, data)
	var told *serverError
	switch {
	case errors.As(err, &told):
		return c, &failure{ServerError, err}
	case err != nil:
		return c, &failure{Malformed, err}
	case c.finish == "abort" || c.finish == "error":
		return c, &failure{ServerError, fmt.Errorf("the server ended the answer with finish reason %s", c.finish)}
	}
	return c, nil
}

// count takes the server's own counts.
func (f *follower) count(c chunk) {
	r := f.record
	r.Counted = true
	r.InputTokens, r.OutputTokens = c.prompt, c.completion
	if c.cachedKnown {
		r.CachedTokens = &c.cached
	}
}

// end takes the end of the stream; marked says that the server wrote it.
func (f *follower) end(marked bool) error {
	if !marked && !f.finished {
		return &failure{Truncated, fmt.Errorf("the stream ended after %d chunks without [DONE] or a finish reason", f.chunks)}
	}
	return nil
}
