package rank

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/sluice-dev/sluice/engine/grammar"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// grammars compiles grammars over the model's vocabulary. The compiler is made at first need: a vocabulary takes a moment
// to sort.
type grammars struct {
	compiler func() (*grammar.Compiler, error)
}

func newGrammars(tok *tokenizer.Tokenizer, info Info) grammars {
	return grammars{compiler: sync.OnceValues(func() (*grammar.Compiler, error) {
		v := grammar.Vocabulary{Size: info.VocabSize, End: info.EOSTokenIDs, Tokens: make([][]byte, min(info.VocabSize, tok.VocabSize()))}
		if len(v.End) == 0 {
			return nil, errors.New("this model names no end token, so no answer that a grammar bounds could end: send the request without one")
		}
		for id := range v.Tokens {
			v.Tokens[id] = []byte(tok.Text(int32(id)))
		}
		return grammar.NewCompiler(v, grammar.Config{})
	})}
}

// Compile implements scheduler.Grammars.
func (g grammars) Compile(ctx context.Context, r request.Grammar) (scheduler.Grammar, error) {
	c, err := g.compiler()
	if err != nil {
		return nil, err
	}
	kind := map[request.GrammarKind]grammar.Kind{
		request.GrammarJSONSchema: grammar.JSONSchema, request.GrammarRegex: grammar.Regex,
	}[r.Kind]
	if kind == "" {
		return nil, fmt.Errorf("grammar kind is %q: use %s or %s", r.Kind, request.GrammarJSONSchema, request.GrammarRegex)
	}
	compiled, found, err := c.Obtain(ctx, grammar.Spec{Kind: kind, Source: r.Source})
	if err != nil {
		return nil, err
	}
	return compiledGrammar{compiled, found}, nil
}

// compiledGrammar is a scheduler.Grammar.
type compiledGrammar struct {
	*grammar.Grammar
	found bool // it was compiled for an earlier request
}

func (g compiledGrammar) Matcher() scheduler.Matcher { return matcher{g.Grammar.Matcher()} }

// matcher is a scheduler.Matcher.
type matcher struct{ *grammar.Matcher }

func (m matcher) Follow(ctx context.Context, token int32, dst []uint64) error {
	return named(m.Matcher.Follow(ctx, token, dst))
}

func (m matcher) Try(token int32, dst []uint64) (ok bool, err error) {
	ok, err = m.Matcher.Try(token, dst)
	return ok, named(err)
}

// named gives an error the scheduler's name where it has one.
func named(err error) error {
	if errors.Is(err, grammar.ErrNotAllowed) {
		return fmt.Errorf("%w: %w", scheduler.ErrNotAllowed, err)
	}
	return err
}

// Facts implements scheduler.Grammar.
func (g compiledGrammar) Facts() scheduler.GrammarFacts {
	return scheduler.GrammarFacts{CacheHit: g.found, Schemas: g.Schemas(), Size: g.Size()}
}
