package rank

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// TestGrammars: answers match what bounds them, and what can't bound one is refused with a reason.
func TestGrammars(t *testing.T) {
	dir := seededModel(t)
	tok, err := tokenizer.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, reason string
		grammar      request.Grammar
		check        func(text string) bool
		outcome      request.Outcome
		message      string
	}{
		{name: "regex", reason: "the whole answer matches", grammar: request.Grammar{Kind: request.GrammarRegex, Source: `[a-c]{3}-\d{2}`},
			check: regexp.MustCompile(`^[a-c]{3}-\d{2}$`).MatchString, outcome: request.OutcomeStop},
		{name: "schema", reason: "the answer is such an object", outcome: request.OutcomeStop,
			grammar: request.Grammar{Kind: request.GrammarJSONSchema, Source: `{"type":"object","properties":{"n":{"type":"integer","minimum":0,"maximum":99},` +
				`"kind":{"enum":["a","b"]}},"required":["n","kind"],"additionalProperties":false}`},
			check: func(text string) bool {
				var v struct {
					N    int
					Kind string
				}
				return json.Unmarshal([]byte(text), &v) == nil && v.N >= 0 && v.N <= 99 && (v.Kind == "a" || v.Kind == "b")
			}},
		{name: "unsupported", reason: "the construct is named", grammar: request.Grammar{Kind: request.GrammarRegex, Source: `a(?=b)`},
			outcome: request.OutcomeInvalid, message: "regex"},
		{name: "kind", reason: "there are two", grammar: request.Grammar{Kind: "ebnf"}, outcome: request.OutcomeInvalid, message: `grammar kind is "ebnf"`},
	}
	for _, retract := range []int{0, 2} {
		cfg := testConfig(dir)
		cfg.TestRetractSteps = retract
		c := startClient(t, startKinds[0], cfg)
		free := submit(t, c, newRequest("free", prompt(9), 60)) // beside one that nothing bounds
		for _, tt := range tests {
			r := newRequest(tt.name, prompt(5), 200)
			r.Sampling.IgnoreEOS = false
			r.Grammar = &tt.grammar
			tokens, f := answer(t, submit(t, c, r))
			text := tok.Decode(tokens, true)
			if f.Outcome != tt.outcome || !strings.Contains(f.Message, tt.message) || tt.check != nil && !tt.check(text) {
				t.Errorf("%s, retraction every %d steps: %q ends with %v: %s", tt.name, retract, text, f, tt.reason)
			}
		}
		if tokens, f := answer(t, free); len(tokens) != 60 {
			t.Errorf("the request without a grammar got %d tokens and %v", len(tokens), f)
		}
	}
}
