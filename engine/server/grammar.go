package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"

	"github.com/sluice-dev/sluice/engine/grammar"
	"github.com/sluice-dev/sluice/engine/request"
)

// anyObject is the schema of response_format json_object.
const anyObject = `{"type":"object"}`

// schemaName is what OpenAI takes as the name of a schema.
var schemaName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// readGrammar reads what bounds an answer: OpenAI's response_format, or SGLang's json_schema and regex. At most one of them
// can be given; bound is nil when none is. field is the one that it came from.
func readGrammar(o *object) (bound *request.Grammar, field string) {
	take := func(g *request.Grammar, name string) {
		switch {
		case g == nil:
		case len(g.Source) > grammar.DefaultSourceBytes: // here, for the ranks get a copy for each answer
			o.fail(&apiError{status: http.StatusBadRequest, param: o.path + name, code: codeGrammar,
				message: fmt.Sprintf("%s%s takes %d bytes, more than %d: make it simpler", o.path, name, len(g.Source), grammar.DefaultSourceBytes)})
		case bound != nil:
			o.failField(name, "and %s exclude each other: send one of them", field)
		default:
			bound, field = g, o.path+name
		}
	}
	take(readResponseFormat(o), "response_format")
	take(readSchema(o, "json_schema"), "json_schema")
	if text := o.string("regex", ""); text != "" {
		take(&request.Grammar{Kind: request.GrammarRegex, Source: text}, "regex")
	}
	for _, f := range []struct{ name, remedy string }{
		{"ebnf", "write the language as json_schema or regex"},
		{"structural_tag", "bound the whole answer with json_schema or regex"},
	} {
		if o.has(f.name) {
			o.fail(unsupportedField(o.path+f.name, f.remedy))
		}
	}
	return bound, field
}

func readResponseFormat(o *object) *request.Grammar {
	format := o.object("response_format")
	switch kind := format.string("type", "text"); kind {
	case "text":
		return nil
	case "json_object":
		return &request.Grammar{Kind: request.GrammarJSONSchema, Source: anyObject}
	case "json_schema":
		inner := format.object("json_schema")
		if !format.has("json_schema") {
			format.failField("json_schema", "is missing: send an object with name and schema")
			return nil
		}
		if name := inner.string("name", ""); !schemaName.MatchString(name) {
			inner.failField("name", "must be 1 to 64 letters, digits, underscores and dashes, not %q", clip(name))
		}
		inner.string("description", "")
		inner.boolean("strict", false) // the schema binds the answer either way
		if !inner.has("schema") {
			inner.failField("schema", "is missing: send the JSON schema that the answer must fit")
			return nil
		}
		return readSchema(inner, "schema")
	default:
		o.fail(unsupportedField(format.path+"type", "send text, json_object or json_schema, not "+clip(kind)))
		return nil
	}
}

// readSchema reads a JSON schema: as an object, or as a string that holds one. nil when absent.
func readSchema(o *object, name string) *request.Grammar {
	raw, present := o.value(name)
	if !present {
		return nil
	}
	if isKind(raw, '"') {
		raw = json.RawMessage(o.string(name, ""))
		if len(raw) == 0 {
			return nil
		}
		if !json.Valid(raw) {
			o.failField(name, "must hold a JSON schema, but it is no JSON")
			return nil
		}
		raw = bytes.TrimSpace(raw)
	}
	if !isKind(raw, '{') {
		o.failField(name, "must be a JSON schema, which is an object, not %s", kindOf(raw))
		return nil
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		o.failField(name, "must be a JSON schema: %v", err)
		return nil
	}
	return &request.Grammar{Kind: request.GrammarJSONSchema, Source: compact.String()}
}
