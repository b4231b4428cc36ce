package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
)

// encoding/json reads what a MarshalJSON has written once more, byte by byte, which is most of the time of a large answer.
// So large lists don't go through it: an answer is encoded with empty lists, and the lists are put in their places.

// splice is a list to put in place.
type splice struct {
	key    string // of the list's object, with quotes and colon: no text can hold it, whose quotes are escaped
	empty  string // what stands there
	size   int    // bytes, about
	append func(b []byte) []byte
}

// spliced is an answer that has large lists.
type spliced interface {
	// hollow gives the answer with the lists empty, and the lists in the order of their places; an error when one holds what
	// JSON can't write.
	hollow() (any, []splice, error)
}

// encodeValue gives the same bytes as encoding/json.
func encodeValue(value any) ([]byte, error) {
	answer, ok := value.(spliced)
	if !ok {
		return json.Marshal(value)
	}
	hollow, lists, err := answer.hollow()
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(hollow)
	if err != nil || len(lists) == 0 {
		return raw, err
	}
	size := len(raw) + 1 // a line's end
	for _, l := range lists {
		size += l.size
	}
	whole := make([]byte, 0, size)
	for _, l := range lists {
		at := bytes.Index(raw, []byte(l.key+l.empty))
		if at < 0 {
			return nil, fmt.Errorf("an answer has no place for %s", l.key)
		}
		at += len(l.key)
		whole = l.append(append(whole, raw[:at]...))
		raw = raw[at+len(l.empty):]
	}
	return append(whole, raw...), nil
}

// generateAnswers is the body of /generate for several sequences.
type generateAnswers []generateAnswer

func (a generateAnswer) hollow() (any, []splice, error) {
	if a.MetaInfo.nativeLogprobs == nil {
		return a, nil, nil
	}
	empty, lists, err := a.MetaInfo.nativeLogprobs.hollow()
	a.MetaInfo.nativeLogprobs = empty
	return a, lists, err
}

func (a generateAnswers) hollow() (any, []splice, error) {
	all, lists := make(generateAnswers, len(a)), []splice(nil)
	for i, one := range a {
		if all[i] = one; one.MetaInfo.nativeLogprobs == nil {
			continue
		}
		empty, own, err := one.MetaInfo.nativeLogprobs.hollow()
		if err != nil {
			return nil, nil, err
		}
		all[i].MetaInfo.nativeLogprobs, lists = empty, append(lists, own...)
	}
	return all, lists, nil
}

func (l *nativeLogprobs) hollow() (*nativeLogprobs, []splice, error) {
	empty := &nativeLogprobs{Input: nativeList{}, Output: nativeList{}, OutputLength: l.OutputLength}
	var lists []splice
	for _, side := range []struct {
		key  string
		list nativeList
	}{{`"input_token_logprobs":`, l.Input}, {`"output_token_logprobs":`, l.Output}} {
		if err := side.list.check(); err != nil {
			return nil, nil, err
		}
		lists = append(lists, splice{side.key, "[]", side.list.size(), side.list.append})
	}
	for _, side := range []struct {
		key  string
		rows *nativeRows
		to   **nativeRows
	}{
		{`"input_top_logprobs":`, l.InputTop, &empty.InputTop}, {`"output_top_logprobs":`, l.OutputTop, &empty.OutputTop},
		{`"input_token_ids_logprobs":`, l.InputAsked, &empty.InputAsked}, {`"output_token_ids_logprobs":`, l.OutputAsked, &empty.OutputAsked},
	} {
		if side.rows == nil {
			continue
		}
		if err := side.rows.check(); err != nil {
			return nil, nil, err
		}
		*side.to = &nativeRows{}
		lists = append(lists, splice{side.key, "[]", side.rows.size(), side.rows.append})
	}
	return empty, lists, nil
}

// logprobsKey is where a choice has its logprobs.
const logprobsKey = `"logprobs":`

func (a chatAnswer) hollow() (any, []splice, error) {
	choices, lists := slices.Clone(a.Choices), []splice(nil)
	for i, c := range a.Choices {
		if l := c.Logprobs; l != nil {
			if err := l.check(); err != nil {
				return nil, nil, err
			}
			c.Logprobs, lists = &chatLogprobs{}, append(lists, splice{logprobsKey, `{"content":null,"refusal":null}`, l.size(), l.append})
		}
		choices[i] = c
	}
	a.Choices = choices
	return a, lists, nil
}

func (a completionAnswer) hollow() (any, []splice, error) {
	choices, lists := slices.Clone(a.Choices), []splice(nil)
	for i, c := range a.Choices {
		if l := c.Logprobs; l != nil {
			if err := l.check(); err != nil {
				return nil, nil, err
			}
			c.Logprobs, lists = &completionLogprobs{}, append(lists,
				splice{logprobsKey, `{"text_offset":null,"token_logprobs":null,"tokens":null,"top_logprobs":null}`, l.size(), l.append})
		}
		choices[i] = c
	}
	a.Choices = choices
	return a, lists, nil
}
