package grammar

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"regexp/syntax"
	"sync"
	"unicode/utf8"
)

// Kind is what a Source is written in.
type Kind string

// The kinds.
const (
	JSONSchema Kind = "json_schema"
	Regex      Kind = "regex"
	JSONObject Kind = "json_object" // any object; there is no source
)

// Spec is what a text has to be.
//
// An expression has to match the whole text; regex.go says which there are.
//
// A schema admits JSON without spaces around it and with Config.Whitespace after { [ : and , and before } and ]. Every
// text that comes out satisfies the schema, but not every value that would satisfy it can come out:
//   - properties come in the order of the schema, then those that are only in required, then others;
//   - without additionalProperties there are no others beside properties; without items no others after prefixItems;
//   - pattern has to match the whole string, and format is enforced;
//   - strings use an escape where a pattern, const or enum leaves one a choice only if they must;
//   - numbers have at most 18 digits before and 17 after the point unless a bound has more, exponents of at most 2 digits,
//     and none where there are bounds;
//   - oneOf is anyOf: that a second alternative does not hold is not enforced;
//   - keywords that nobody knows are ignored, as the specification asks.
//
// Keywords that are known and not enforced are an *UnsupportedError.
type Spec struct {
	Kind   Kind
	Source string
}

// DefaultSourceBytes is how long a source may be when Limits don't say. Who takes sources from clients may refuse longer ones
// before they go any further.
const DefaultSourceBytes = 256 << 10

// Limits bound what a source may cost. Zero fields take the defaults.
type Limits struct {
	SourceBytes    int // of a source; DefaultSourceBytes
	Nodes          int // of an automaton before the steps that consume nothing are gone
	Work           int // steps to remove those
	Depth          int // of JSON and of schemas in schemas
	Merge          int // steps to merge schemas that hold at once
	Repeat         int // of minLength, maxItems and their like
	Configurations int // ways to read one text at once
	MaskWork       int // steps for one mask
}

func (l Limits) withDefaults() Limits {
	for _, field := range []struct {
		value     *int
		otherwise int
	}{
		{&l.SourceBytes, DefaultSourceBytes}, {&l.Nodes, 100_000}, {&l.Work, 4_000_000}, {&l.Depth, 128}, {&l.Merge, 200_000}, {&l.Repeat, 1 << 20},
		{&l.Configurations, 1024}, {&l.MaskWork, 20_000_000},
	} {
		if *field.value == 0 {
			*field.value = field.otherwise
		}
	}
	return l
}

// Config is how a Compiler works. Zero fields take the defaults.
type Config struct {
	Limits Limits
	// Whitespace is the expression of what may stand between parts of JSON; only JSON's white space may be in it. The
	// default is nothing, a space, or a line feed and up to 32 spaces or tabs: texts may be compact, on one line or
	// indented, and can't go on with white space for ever. `` by itself is NoWhitespace.
	Whitespace string
	// CacheBytes is what all grammars together keep, an estimate of the memory: sources, automata and what they found out;
	// 256 MiB by default, some hundred grammars of the usual size. Beyond it the one that was not used for longest goes.
	CacheBytes int
	// KeepBytes is how much one grammar keeps of what it found out, besides what one step needs, so that one of many states
	// does not push all others out; an eighth of CacheBytes by default.
	KeepBytes int
}

// The expressions of Config.Whitespace.
const (
	DefaultWhitespace = `( |\n[ \t]{0,32})?`
	NoWhitespace      = `()`
)

// Compiler makes grammars over one vocabulary. It is safe for concurrent use.
type Compiler struct {
	trie       *trie
	tokens     [][]byte
	config     Config
	whitespace *syntax.Regexp

	mu      sync.Mutex
	entries map[Spec]*entry
	cache   cache
}

// entry is a source that was asked for.
type entry struct {
	spec    Spec
	waiters int                // who waits; the last to go cancels
	cancel  context.CancelFunc // of the build
	done    chan struct{}      // closed when grammar or err is set
	grammar *Grammar
	err     error
	built   bool // done is closed

	place *list.Element // in the cache; nil while it isn't there
	bytes int           // counted by the cache, 0 while it isn't there
}

// NewCompiler makes a compiler. The vocabulary must not change afterwards.
func NewCompiler(v Vocabulary, c Config) (*Compiler, error) {
	if err := v.validate(); err != nil {
		return nil, err
	}
	c.Limits = c.Limits.withDefaults()
	if c.CacheBytes == 0 {
		c.CacheBytes = 256 << 20
	}
	if c.KeepBytes == 0 {
		c.KeepBytes = c.CacheBytes / 8
	}
	if c.Whitespace == "" {
		c.Whitespace = DefaultWhitespace
	}
	re, err := parseRegex(c.Whitespace, "whitespace")
	if err != nil {
		return nil, err
	}
	if !spaceOnly(re) {
		return nil, fmt.Errorf("whitespace %q admits more than space, tab, line feed and carriage return", c.Whitespace)
	}
	return &Compiler{
		trie: newTrie(&v), tokens: v.Tokens, config: c, whitespace: re,
		entries: map[Spec]*entry{}, cache: cache{most: c.CacheBytes},
	}, nil
}

// Words is how many uint64s a mask has.
func (c *Compiler) Words() int { return c.trie.words }

// Compile gives the grammar of a source. Who asks for the same one at the same time waits for one build; it is kept
// afterwards, errors included. A build ends early when nobody waits any more. Errors are those of ctx, or an
// *UnsupportedError, *InvalidError or *LimitError, all of which are the client's.
func (c *Compiler) Compile(ctx context.Context, spec Spec) (*Grammar, error) {
	g, _, err := c.Obtain(ctx, spec)
	return g, err
}

// Obtain is Compile; found says that somebody had asked for the same source before.
func (c *Compiler) Obtain(ctx context.Context, spec Spec) (g *Grammar, found bool, err error) {
	if spec.Kind == JSONObject {
		spec.Source = ""
	}
	if n := c.config.Limits.SourceBytes; len(spec.Source) > n {
		return nil, false, fmt.Errorf("%s: %w", spec.Kind, &LimitError{"bytes of source", n})
	}
	c.mu.Lock()
	e, ok := c.entries[spec]
	if !ok {
		build, cancel := context.WithCancel(context.WithoutCancel(ctx))
		e = &entry{spec: spec, cancel: cancel, done: make(chan struct{})}
		c.entries[spec] = e
		go c.build(build, e)
	}
	c.cache.touch(e)
	e.waiters++
	c.mu.Unlock()
	defer c.leave(e)
	select {
	case <-e.done:
	default:
		select {
		case <-e.done:
		case <-ctx.Done():
			return nil, ok, fmt.Errorf("compile %s: %w", spec.Kind, ctx.Err())
		}
	}
	if e.err != nil {
		return nil, ok, fmt.Errorf("%s: %w", spec.Kind, e.err)
	}
	return e.grammar, ok, nil
}

// leave is the end of a wait.
func (c *Compiler) leave(e *entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e.waiters--
	if e.waiters == 0 && !e.built {
		e.cancel()
		// Who comes now must not get the error of the cancelled build.
		if c.entries[e.spec] == e {
			delete(c.entries, e.spec)
		}
	}
}

// build fills an entry in.
func (c *Compiler) build(ctx context.Context, e *entry) {
	defer e.cancel()
	e.grammar, e.err = c.compile(ctx, e.spec)
	if e.grammar != nil {
		e.grammar.compiler, e.grammar.entry = c, e
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.built = true
	switch {
	case c.entries[e.spec] != e: // nobody wants it any more
	case errors.Is(e.err, context.Canceled):
		delete(c.entries, e.spec)
	default:
		c.count(e)
	}
	close(e.done)
}

// compile builds a grammar.
func (c *Compiler) compile(ctx context.Context, spec Spec) (g *Grammar, err error) {
	defer catch(&err)
	limits := c.config.Limits
	b := newBuilder(ctx, limits)
	schemas := 0
	switch spec.Kind {
	case Regex:
		re, err := parseRegex(spec.Source, "")
		if err != nil {
			return nil, err
		}
		(&writer{b: b, point: b.class}).regex(b.start[0], re, b.end[0])
	case JSONSchema, JSONObject:
		root := &value{kind: kindObject, members: []member{{"type", &value{kind: kindString, text: "object"}}}}
		if spec.Kind == JSONSchema {
			if !utf8.ValidString(spec.Source) {
				return nil, &InvalidError{"the schema is not valid UTF-8", "byte 0"}
			}
			if root, err = parseValue(spec.Source, limits.Depth); err != nil {
				return nil, err
			}
		}
		w := &schemaWriter{b: b, root: root, whitespace: c.whitespace, refs: map[string]int32{}, places: map[string]bool{}, limits: limits}
		w.add(b.start[0], root, b.end[0])
		schemas = len(w.places)
	default:
		return nil, &InvalidError{fmt.Sprintf("must be %s, %s or %s", JSONSchema, Regex, JSONObject), "kind"}
	}
	n := b.finish()
	g = &Grammar{tokens: c.tokens, schemas: schemas, states: len(n.nodes), fixed: n.bytes(), automaton: newAutomaton(n, c.trie, limits, c.config.KeepBytes)}
	// The first mask is asked for on the hot path; it is ready by then.
	if err := g.automaton.mask(g.automaton.start).err; err != nil {
		return nil, err
	}
	return g, nil
}

// Grammar is a compiled source. It is safe for concurrent use.
type Grammar struct {
	tokens  [][]byte
	schemas int
	states  int
	fixed   int // bytes of the automaton without what it finds out

	compiler *Compiler // nil: nobody keeps it
	entry    *entry

	mu        sync.Mutex
	automaton *automaton
	counted   int // the automaton's bytes that the cache knows of
}

// begin begins a call, with the grammar locked, that gives up after so many steps, or when nobody wants it any more; 0 and nil:
// never.
func (g *Grammar) begin(allowance int, unwanted <-chan struct{}) {
	g.automaton.begin(allowance, unwanted)
}

// end ends a call: it unlocks the grammar and tells the cache what it takes now.
func (g *Grammar) end() {
	grown := g.automaton.bytes != g.counted
	g.automaton.begin(0, nil)
	if c := g.compiler; c != nil {
		c.mu.Lock()
		if grown {
			c.count(g.entry)
		} else {
			c.cache.touch(g.entry)
		}
		c.mu.Unlock()
	}
	g.mu.Unlock()
}

// Words is how many uint64s a mask has.
func (g *Grammar) Words() int { return g.automaton.trie.words }

// Schemas is how many schemas of its source the grammar was made of, the outermost included; 0 for a regular expression.
func (g *Grammar) Schemas() int { return g.schemas }

// Size is the states of the automaton that the source became, before it is run.
func (g *Grammar) Size() int { return g.states }

// Matcher gives a matcher at the beginning of a text.
func (g *Grammar) Matcher() *Matcher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return &Matcher{grammar: g, state: g.automaton.start, generation: g.automaton.generation}
}
