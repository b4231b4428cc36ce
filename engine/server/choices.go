package server

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"
)

// A request for n answers to p prompts has p*n sequences. Sequence i*n+k is answer k to prompt i; its rid begins with the
// request's, so that aborting that ends them all.

// identities are the rids of one client request.
type identities struct {
	base string   // the request's own: begins all rids, unless the client gave one for each prompt
	rids []string // [prompts*n]
}

// identity gives each sequence its rid: the client's, numbered when there are several sequences, or a new one.
func identity(o *object, prompts, n int) identities {
	given := o.strings("rid")
	for i, rid := range given {
		switch {
		case rid == "":
			o.failField("rid", "must not be empty: leave it out to get one")
		case len(rid) > 256:
			o.failField("rid", "must have at most 256 bytes, but number %d has %d", i, len(rid))
		}
	}
	ids := identities{rids: make([]string, prompts*n)}
	if raw, _ := o.value("rid"); isKind(raw, '[') && len(given) > 0 && len(given) != prompts {
		o.failField("rid", "must be one string or %d, one for each prompt, not %d", prompts, len(given))
		return ids
	}
	ids.base = newRID()
	if len(given) > 0 {
		ids.base = given[0]
	}
	for i := range ids.rids {
		switch {
		case len(given) > 1 && n == 1:
			ids.rids[i] = given[i]
		case len(given) > 1:
			ids.rids[i] = fmt.Sprintf("%s_%d", given[i/n], i%n)
		case len(ids.rids) == 1:
			ids.rids[i] = ids.base
		default:
			ids.rids[i] = fmt.Sprintf("%s_%d", ids.base, i)
		}
	}
	return ids
}

// firstRID gives the first rid of a body that nobody has checked yet; "" when it has none that can be read.
func firstRID(o *object) string {
	raw, _ := o.value("rid")
	var rid string
	var list []rawMessage
	if json.Unmarshal(raw, &list) == nil && len(list) > 0 {
		raw = list[0]
	}
	if json.Unmarshal(raw, &rid) != nil {
		return ""
	}
	return rid
}

func newRID() string {
	id := uuid.New()
	return fmt.Sprintf("%x", id[:])
}

// checkSequences refuses more sequences than one request may have.
func checkSequences(o *object, prompts, n int) {
	if prompts*n > maxSequences {
		o.failField("n", "is %d for %d prompts, but a request may have %d sequences: send fewer prompts or a smaller n", n, prompts, maxSequences)
	}
}

// perPrompt reads a field that is one value for all prompts or a list with one for each; read reads one value.
func perPrompt[T any](o *object, name string, count int, fallback T, read func(inner *object, name string) T) []T {
	values := make([]T, count)
	raw, present := o.value(name)
	items, isList := array(raw)
	switch {
	case !present:
		for i := range values {
			values[i] = fallback
		}
	case !isList:
		one := read(o, name)
		for i := range values {
			values[i] = one
		}
	case len(items) != count:
		o.failField(name, "must be one value or %d, one for each prompt, not %d", count, len(items))
	default:
		for i, item := range items {
			field := fmt.Sprintf("%s[%d]", name, i)
			values[i] = read(&object{path: o.path, fault: o.fault, raw: map[string]rawMessage{field: item}}, field)
		}
	}
	return values
}
