package scheduler

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sluice-dev/sluice/engine/request"
)

// The encoding of an input: a byte of flags, the number of messages, and each message as its kind, the length of its body
// and the body. Bodies are JSON, of a submission after the prompt as numbers. The same input gives the same bytes.

const flagStop byte = 1

// wireKind is a message's first byte.
type wireKind byte

const (
	wireSubmit wireKind = iota + 1
	wireAbort
	wireFlush
	wireControl
	wireGrammar
	wireMask
)

// What of messages is shared: all but sinks and replies.
type (
	abortBody struct {
		RID    string
		Prefix bool
		Reason request.Outcome
	}
	controlBody struct {
		Kind    controlKind
		Mode    request.PauseMode
		Session request.Session
	}
	grammarBody struct {
		Arrival int64
		Verdict verdict
		Message string
	}
	maskBody struct {
		Arrival     int64
		Ended, Left bool   `json:",omitempty"`
		Fault       string `json:",omitempty"`
	}
)

func (in input) encode() ([]byte, error) {
	flags := byte(0)
	if in.stop {
		flags = flagStop
	}
	raw := binary.AppendUvarint([]byte{flags}, uint64(len(in.messages)))
	for _, m := range in.messages {
		kind, body, err := encodeMessage(m)
		if err != nil {
			return nil, err
		}
		raw = append(raw, byte(kind))
		raw = binary.AppendUvarint(raw, uint64(len(body)))
		raw = append(raw, body...)
	}
	return raw, nil
}

func encodeMessage(m message) (kind wireKind, body []byte, err error) {
	switch m := m.(type) {
	case submitMsg:
		body, err = encodeRequest(m.req)
		return wireSubmit, body, err
	case abortMsg:
		body, err = json.Marshal(abortBody{m.rid, m.prefix, m.reason})
		return wireAbort, body, err
	case flushMsg:
		return wireFlush, nil, nil
	case controlMsg:
		body, err = json.Marshal(controlBody{m.kind, m.mode, m.session})
		return wireControl, body, err
	case grammarMsg:
		body, err = json.Marshal(grammarBody{m.arrival, m.verdict, m.message})
		return wireGrammar, body, err
	case maskMsg:
		body, err = json.Marshal(maskBody{m.arrival, m.ended, m.left, m.fault})
		return wireMask, body, err
	default:
		panic(fmt.Sprintf("scheduler: a message of type %T can't be shared", m))
	}
}

// encodeRequest gives a request's bytes; an error when a number in it is none that JSON has.
func encodeRequest(r *request.Request) ([]byte, error) {
	body := binary.AppendUvarint(make([]byte, 0, 3*len(r.PromptIDs)+512), uint64(len(r.PromptIDs)))
	for _, id := range r.PromptIDs {
		body = binary.AppendVarint(body, int64(id))
	}
	rest := *r
	rest.PromptIDs = nil
	raw, err := json.Marshal(rest)
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", r.RID, err)
	}
	return append(body, raw...), nil
}

var errInput = errors.New("it is cut short, or not an input")

// decodeInput is the reverse of encode. Sinks and replies are nil.
func decodeInput(raw []byte) (input, error) {
	if len(raw) < 1 || raw[0] > flagStop {
		return input{}, errInput
	}
	in := input{stop: raw[0] == flagStop}
	raw = raw[1:]
	n, raw, err := cutNumber(raw)
	if err != nil || n > uint64(len(raw)) {
		return input{}, errInput
	}
	for range n {
		if len(raw) < 1 {
			return input{}, errInput
		}
		kind := wireKind(raw[0])
		var size uint64
		if size, raw, err = cutNumber(raw[1:]); err != nil || size > uint64(len(raw)) {
			return input{}, errInput
		}
		m, err := decodeMessage(kind, raw[:size])
		if err != nil {
			return input{}, err
		}
		in.messages = append(in.messages, m)
		raw = raw[size:]
	}
	if len(raw) > 0 {
		return input{}, errInput
	}
	return in, nil
}

func decodeMessage(kind wireKind, body []byte) (message, error) {
	switch kind {
	case wireSubmit:
		r, err := decodeRequest(body)
		return submitMsg{req: r}, err
	case wireAbort:
		var b abortBody
		err := decodeBody(body, &b)
		return abortMsg{rid: b.RID, prefix: b.Prefix, reason: b.Reason}, err
	case wireFlush:
		if len(body) > 0 {
			return nil, errInput
		}
		return flushMsg{}, nil
	case wireControl:
		var b controlBody
		err := decodeBody(body, &b)
		return controlMsg{kind: b.Kind, mode: b.Mode, session: b.Session}, err
	case wireGrammar:
		var b grammarBody
		err := decodeBody(body, &b)
		return grammarMsg{arrival: b.Arrival, verdict: b.Verdict, message: b.Message}, err
	case wireMask:
		var b maskBody
		err := decodeBody(body, &b)
		return maskMsg{arrival: b.Arrival, ended: b.Ended, left: b.Left, fault: b.Fault}, err
	default:
		return nil, fmt.Errorf("a message of kind %d: %w", kind, errInput)
	}
}

func decodeRequest(body []byte) (*request.Request, error) {
	n, body, err := cutNumber(body)
	if err != nil || n > uint64(len(body)) {
		return nil, errInput
	}
	var ids []int32
	for range n {
		id, size := binary.Varint(body)
		if size <= 0 || int64(int32(id)) != id {
			return nil, errInput
		}
		ids = append(ids, int32(id))
		body = body[size:]
	}
	r := &request.Request{}
	if err := decodeBody(body, r); err != nil {
		return nil, err
	}
	r.PromptIDs = ids
	return r, nil
}

func decodeBody(body []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("a message's body: %w", err)
	}
	if d.InputOffset() != int64(len(body)) {
		return errInput
	}
	return nil
}

func cutNumber(raw []byte) (n uint64, rest []byte, err error) {
	n, size := binary.Uvarint(raw)
	if size <= 0 {
		return 0, nil, errInput
	}
	return n, raw[size:], nil
}
