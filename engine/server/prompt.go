package server

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/request"
)

// maxSequences bounds the sequences of one client request.
const maxSequences = 2048

// prompts are the inputs of one client request, in order: texts, or token ids.
type prompts struct {
	param string // the field they came from
	batch bool   // a list, though perhaps of one
	texts []string
	ids   [][]int32
}

func (p prompts) count() int { return max(len(p.texts), len(p.ids)) }

// readPrompts reads a field that may be a string, a list of strings, a list of token ids or a list of such lists.
func readPrompts(o *object, name string) prompts {
	p := prompts{param: o.path + name}
	raw, present := o.value(name)
	items, isArray := array(raw)
	switch {
	case !present:
		o.failField(name, "is missing: send the prompt")
	case isKind(raw, '"'):
		p.texts = []string{o.string(name, "")}
	case !isArray:
		o.failField(name, "must be a string, an array of strings, or token ids, not %s", kindOf(raw))
	case len(items) == 0:
		o.failField(name, "must not be an empty array")
	case len(items) > maxSequences && (isKind(items[0], '"') || isKind(items[0], '[')):
		o.failField(name, "must hold at most %d prompts, not %d", maxSequences, len(items))
	case isKind(items[0], '"'):
		p.texts, p.batch = o.strings(name), true
	case isKind(items[0], '['):
		p.batch = true
		for i, item := range items {
			if !isKind(item, '[') {
				o.failField(fmt.Sprintf("%s[%d]", name, i), "must be an array of token ids, not %s", kindOf(item))
				break
			}
			field := fmt.Sprintf("%s[%d]", name, i)
			inner := &object{path: o.path, fault: o.fault, raw: map[string]rawMessage{field: item}}
			p.ids = append(p.ids, tokenIDs(inner, field))
		}
	default:
		p.ids = [][]int32{tokenIDs(o, name)}
	}
	return p
}

// encode gives the tokens of each prompt.
func (p prompts) encode(e *engine, addSpecial bool) ([][]int32, *apiError) {
	ids := p.ids
	for i, text := range p.texts {
		prompt, err := e.encode(p.paramOf(i), text, addSpecial)
		if err != nil {
			return nil, err
		}
		ids = append(ids, prompt)
	}
	for i, prompt := range p.ids {
		if err := checkPrompt(e.info, p.paramOf(i), prompt); err != nil {
			return nil, err
		}
		for k, id := range prompt {
			if int(id) >= e.info.VocabSize {
				return nil, badField(fmt.Sprintf("%s[%d]", p.paramOf(i), k), "is token %d, but the model's tokens end at %d", id, e.info.VocabSize-1)
			}
		}
	}
	return ids, nil
}

// paramOf names the field of one prompt.
func (p prompts) paramOf(i int) string {
	if p.batch {
		return fmt.Sprintf("%s[%d]", p.param, i)
	}
	return p.param
}

// encode gives the tokens of a text that can be served.
func (e *engine) encode(param, text string, addSpecial bool) ([]int32, *apiError) {
	if len(text) > e.maxTextBytes {
		err := badField(param, "has %d bytes, more than the %d tokens that fit: the context is %d tokens and the KV pool %d",
			len(text), e.info.MaxPromptTokens(), e.info.ContextLength, e.info.MaxTotalNumTokens)
		err.code = codeContextLength
		return nil, err
	}
	ids := e.tokenizer.Encode(text, addSpecial)
	return ids, checkPrompt(e.info, param, ids)
}

// checkPrompt refuses a prompt that can never be served.
func checkPrompt(info rank.Info, param string, ids []int32) *apiError {
	if len(ids) == 0 {
		return badField(param, "must have at least one token")
	}
	if limit := info.MaxPromptTokens(); len(ids) > limit {
		err := badField(param, "has %d tokens, but at most %d fit: the context is %d tokens and the KV pool %d, and one token must be left for the answer",
			len(ids), limit, info.ContextLength, info.MaxTotalNumTokens)
		err.code = codeContextLength
		return err
	}
	return nil
}

// boundNewTokens sets MaxNewTokens: what the client asked for must fit the context; what does not fit the KV pool is cut,
// and without a number the answer may fill both.
func boundNewTokens(info rank.Info, s *sampling, promptTokens int, param string) *apiError {
	room := min(info.ContextLength, info.MaxTotalNumTokens) - promptTokens
	if s.MaxNewTokens == 0 {
		s.MaxNewTokens = room
	}
	if s.MaxNewTokens > info.ContextLength-promptTokens {
		err := badField(param, "is %d and the prompt has %d tokens, but the context is %d: send at most %d",
			s.MaxNewTokens, promptTokens, info.ContextLength, info.ContextLength-promptTokens)
		err.code = codeContextLength
		return err
	}
	s.MaxNewTokens = min(s.MaxNewTokens, room)
	s.MinNewTokens = min(s.MinNewTokens, s.MaxNewTokens)
	for i, id := range s.StopTokenIDs {
		if int(id) >= info.VocabSize {
			return badField(fmt.Sprintf("stop_token_ids[%d]", i), "is token %d, but the model's tokens end at %d", id, info.VocabSize-1)
		}
	}
	for _, bias := range s.LogitBias {
		if int(bias.Token) >= info.VocabSize {
			return badField("logit_bias", "has token %d, but the model's tokens end at %d", bias.Token, info.VocabSize-1)
		}
	}
	return nil
}

// readBootstraps reads where the two halves of each sequence meet, n for each prompt. A unified engine has no use for it.
// Both engines count the same way.
func (s *Server) readBootstraps(o *object, prompts, n int) []*request.Bootstrap {
	list := make([]*request.Bootstrap, prompts*n)
	mode := s.cfg.Rank.Disagg.Mode
	if mode == rank.ModeUnified {
		return list
	}
	rooms := o.integers("bootstrap_room")
	hosts := o.strings("bootstrap_host")
	ports := o.integers("bootstrap_port")
	switch {
	case len(rooms) == 0:
		o.failField("bootstrap_room", "is missing: a %s engine serves only requests that a router has paired; send it to the router", mode)
		return list
	case len(hosts) == 0 && mode == rank.ModeDecode:
		o.failField("bootstrap_host", "is missing: name the host of the prefill engine's bootstrap server")
		return list
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"bootstrap_room", len(rooms)}, {"bootstrap_host", len(hosts)}, {"bootstrap_port", len(ports)}} {
		if f.n > 1 && f.n != prompts {
			o.failField(f.name, "must be one value or %d, one for each prompt, not %d", prompts, f.n)
			return list
		}
	}
	for i := range list {
		b := &request.Bootstrap{Port: s.cfg.BootstrapPort}
		if len(hosts) > 0 {
			b.Host = hosts[min(i/n, len(hosts)-1)]
			if !isHost(b.Host) {
				o.failField("bootstrap_host", "must be a host name or an address, not %q", clip(b.Host))
				return list
			}
		}
		if len(ports) > 0 {
			port := ports[min(i/n, len(ports)-1)]
			if port < 1 || port > 65535 {
				o.failField("bootstrap_port", "must be from 1 to 65535, not %d", port)
				return list
			}
			b.Port = int(port)
		}
		room := rooms[min(i/n, len(rooms)-1)]
		switch {
		case b.Host == request.FakeBootstrapHost:
			b.Room = room
		case len(rooms) == 1:
			b.Room = room + int64(i)
		default: // rooms of neighbours may be neighbours, so the further answers' are far away
			b.Room = int64((uint64(room) + uint64(i%n)*roomStride) & math.MaxInt64)
		}
		if room < 0 || b.Room < 0 { // or past the largest
			o.failField("bootstrap_room", "must be from 0 to %d, not %d", int64(math.MaxInt64), room)
			return list
		}
		list[i] = b
	}
	return list
}

// roomStride is how far apart the rooms of the answers to one prompt are, where each prompt has its own room.
const roomStride = 0x9e3779b97f4a7c15

// isHost reports whether a text can be the host of a peer, alone: no port, no path, nothing that a URL would read
// differently.
func isHost(text string) bool {
	if net.ParseIP(text) != nil {
		return true
	}
	if text == "" || len(text) > 253 {
		return false
	}
	for label := range strings.SplitSeq(strings.TrimSuffix(text, "."), ".") {
		if !hostLabel.MatchString(label) {
			return false
		}
	}
	return true
}

// hostLabel is a part of a host name between two dots.
var hostLabel = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?$`)

// arrival starts the timeline of a client request; every sequence of it begins there.
func (s *Server) arrival() ledger.Timeline {
	return *ledger.NewTimeline(s.clock, ledger.APIServer)
}

// maxReceivedAge is how long ago another process may have received a request; before that its clock is wrong.
const (
	maxReceivedAge = time.Hour
	latestSecond   = 9e9 // whose nanoseconds fit an int64
)

// readReceived lets a request begin when another process says that it received it. A time to come, as of a clock that is
// ahead, is now.
func (s *Server) readReceived(o *object, arrival ledger.Timeline) ledger.Timeline {
	if !o.has("received_time") {
		return arrival
	}
	began := s.clock.Wall(arrival.Started())
	oldest := float64(began-int64(maxReceivedAge)) / 1e9
	seconds := o.number("received_time", 0, 0, latestSecond)
	if seconds < oldest {
		o.failField("received_time", "must be Unix seconds of the last hour, not %v: leave it out", seconds)
		return arrival
	}
	if wallNanos := int64(seconds * 1e9); wallNanos < began {
		arrival.Backdate(arrival.Started() + ledger.Instant(wallNanos-began))
	}
	return arrival
}

// checkModel refuses another model's name; without one the request is for the model that there is.
func (s *Server) checkModel(o *object) {
	name := o.string("model", s.cfg.ServedModelName)
	if name != s.cfg.ServedModelName {
		o.fail(modelNotFound(name, s.cfg.ServedModelName))
	}
}

func modelNotFound(name, served string) *apiError {
	err := badField("model", "%q does not exist: this engine serves %q", name, served)
	err.status, err.code = http.StatusNotFound, codeModelNotFound
	return err
}
