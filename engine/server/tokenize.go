package server

import (
	"net/http"
)

// tokenizeAnswer is the body of /v1/tokenize: lists of lists when the prompt was a list.
type tokenizeAnswer struct {
	Tokens      any `json:"tokens"` // []int32 or [][]int32
	Count       any `json:"count"`  // int or []int
	MaxModelLen int `json:"max_model_len"`
}

// detokenizeAnswer is the body of /v1/detokenize: a list when the tokens were a list of lists.
type detokenizeAnswer struct {
	Text any `json:"text"` // string or []string
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.readTextRequest(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	p := readPrompts(o, "prompt")
	if len(p.ids) > 0 {
		o.failField("prompt", "must be a string or an array of strings, not token ids")
	}
	addSpecial := o.boolean("add_special_tokens", true)
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	lists, counts := make([][]int32, len(p.texts)), make([]int, len(p.texts))
	for i, text := range p.texts {
		lists[i] = append([]int32{}, e.tokenizer.Encode(text, addSpecial)...)
		counts[i] = len(lists[i])
	}
	body := tokenizeAnswer{Tokens: lists, Count: counts, MaxModelLen: e.info.ContextLength}
	if !p.batch {
		body.Tokens, body.Count = lists[0], counts[0]
	}
	writeJSON(w, http.StatusOK, body)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	e, o, err := s.readTextRequest(w, r)
	if err != nil {
		writeError(w, err)
		return
	}
	p := readPrompts(o, "tokens")
	if len(p.texts) > 0 {
		o.failField("tokens", "must hold token ids, not strings")
	}
	skip := o.boolean("skip_special_tokens", true)
	for i, ids := range p.ids {
		for _, id := range ids {
			if int(id) >= e.info.VocabSize {
				o.failField("tokens", "must hold tokens of the model, which end at %d, but list %d has %d", e.info.VocabSize-1, i, id)
			}
		}
	}
	if *o.fault != nil {
		writeError(w, *o.fault)
		return
	}
	texts := make([]string, len(p.ids))
	for i, ids := range p.ids {
		texts[i] = e.tokenizer.Decode(ids, skip)
	}
	if p.batch {
		writeJSON(w, http.StatusOK, detokenizeAnswer{Text: texts})
		return
	}
	writeJSON(w, http.StatusOK, detokenizeAnswer{Text: texts[0]})
}

// readTextRequest is the begin of the routes that only need the tokenizer.
func (s *Server) readTextRequest(w http.ResponseWriter, r *http.Request) (*engine, *object, *apiError) {
	e, err := s.running()
	if err != nil {
		return nil, nil, err
	}
	o, err := s.body(w, r)
	if err != nil {
		return nil, nil, err
	}
	s.checkModel(o)
	return e, o, nil
}
