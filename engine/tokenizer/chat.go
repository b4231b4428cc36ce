package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nikolalohinski/gonja/v2/builtins"
	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/exec"
	"github.com/nikolalohinski/gonja/v2/loaders"
	"github.com/nikolalohinski/gonja/v2/nodes"
	"github.com/nikolalohinski/gonja/v2/parser"
)

// Message is one turn of a chat, as the template sees it.
type Message struct {
	Role    string
	Content string
	// Extra holds further keys of the message (name, tool_calls…), visible to the template.
	Extra map[string]any
}

// defaultChatTemplate is used when a model has none: each turn between <|im_start|> and <|im_end|>.
const defaultChatTemplate = `{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}`

// Limits of one rendering. They keep a faulty template from stopping the engine; they are no defence against one that was
// written to use up memory, so a model's directory must be trusted.
const (
	maxChatBytes = 16 << 20
	maxChatRange = 100_000 // elements of one range()
	maxChatTime  = 5 * time.Second
)

// TemplateError is a chat template that did not render.
type TemplateError struct {
	Line int // of the template, 0 when not known
	Err  error
}

func (e *TemplateError) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("chat template: %v", e.Err)
	}
	return fmt.Sprintf("chat template, line %d: %v", e.Line, e.Err)
}

func (e *TemplateError) Unwrap() error { return e.Err }

// chatTemplate is a parsed template. It sees no files, no other templates and no clock.
type chatTemplate struct {
	template *exec.Template
	maxTime  time.Duration
}

func parseChatTemplate(source string) (t *chatTemplate, err error) {
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, &TemplateError{Err: fmt.Errorf("parse: %v", r)}
		}
	}()
	const name = "/chat_template"
	loader, err := loaders.NewMemoryLoader(map[string]string{name: source})
	if err != nil {
		return nil, err
	}
	cfg := config.New()
	cfg.TrimBlocks, cfg.LeftStripBlocks = true, true
	template, err := exec.NewTemplate(name, cfg, loader, sandbox())
	if err != nil {
		// The library's error starts with the whole source; what follows it is the reason.
		text := strings.TrimPrefix(err.Error(), fmt.Sprintf("failed to parse template '%s': ", source))
		return nil, &TemplateError{Line: lineOf(text), Err: errors.New(text)}
	}
	return &chatTemplate{template: template, maxTime: maxChatTime}, nil
}

// ApplyChatTemplate renders the conversation as the prompt that the model was trained on. With addGenerationPrompt the
// header of the assistant's turn follows. extra are further variables of the template (tools, documents…). An error of
// the template is a *TemplateError and names its line. The result already holds the special tokens: encode it with
// addSpecial false. More than maxBytes of it, or than the limit of every rendering, is ErrChatTooLong; the rest is not rendered.
func (t *Tokenizer) ApplyChatTemplate(messages []Message, addGenerationPrompt bool, extra map[string]any, maxBytes int) (string, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		turn := make(map[string]any, 2+len(m.Extra))
		maps.Copy(turn, m.Extra)
		turn["role"], turn["content"] = m.Role, m.Content
		list[i] = turn
	}
	variables := make(map[string]any, 4+len(extra))
	maps.Copy(variables, extra)
	variables["messages"], variables["add_generation_prompt"] = list, addGenerationPrompt
	variables["bos_token"], variables["eos_token"] = t.bos, t.eos
	return t.chat.render(variables, maxBytes)
}

// ErrChatTooLong says that a conversation is a longer prompt than was allowed.
var ErrChatTooLong = errors.New("renders too much")

// Prompt-building stops at a limit, which is an error of the template.
var (
	errTooSlow  = errors.New("renders for too long")
	errTooLarge = fmt.Errorf("range() of more than %d elements", maxChatRange)
)

// budget is what a rendering may still use. It is a variable of the template under a name that no template can write.
type budget struct{ deadline time.Time }

const budgetName = " budget"

func (b *budget) check() error {
	if time.Now().After(b.deadline) {
		return errTooSlow
	}
	return nil
}

// limitedWriter takes the output.
type limitedWriter struct {
	bytes.Buffer
	maxBytes int
	over     bool // there was more
	budget   *budget
}

func (w *limitedWriter) Write(p []byte) (int, error) {
	if w.Len()+len(p) > w.maxBytes {
		w.over = true
		return 0, ErrChatTooLong
	}
	if err := w.budget.check(); err != nil {
		return 0, err
	}
	return w.Buffer.Write(p)
}

// WriteString keeps io.WriteString on the limited path.
func (w *limitedWriter) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

func (t *chatTemplate) render(variables map[string]any, maxBytes int) (text string, err error) {
	defer func() {
		if r := recover(); r != nil {
			text, err = "", &TemplateError{Err: fmt.Errorf("render: %v", r)}
		}
	}()
	b := &budget{deadline: time.Now().Add(t.maxTime)}
	w := &limitedWriter{maxBytes: min(maxBytes, maxChatBytes), budget: b}
	variables[budgetName] = b
	if err := t.template.Execute(w, exec.NewContext(variables)); w.over {
		return "", &TemplateError{Line: lineOf(err.Error()), Err: fmt.Errorf("%w: more than %d bytes", ErrChatTooLong, w.maxBytes)}
	} else if err != nil {
		return "", renderError(err)
	}
	return w.String(), nil
}

// raised is what a template said with raise_exception.
type raised struct{ message string }

func (r raised) Error() string { return r.message }

// renderError finds the innermost reason, and the innermost line that the library named around it.
func renderError(err error) error {
	line := lineOf(err.Error())
	for _, limit := range []error{errTooSlow, errTooLarge} {
		if strings.Contains(err.Error(), limit.Error()) {
			return &TemplateError{Line: line, Err: limit}
		}
	}
	if _, message, ok := strings.Cut(err.Error(), raiseMark); ok {
		return &TemplateError{Line: line, Err: raised{message}}
	}
	return &TemplateError{Line: line, Err: err}
}

// raiseMark starts the message of raise_exception in the library's error text, which keeps no chain of errors.
const raiseMark = "\x00raise_exception\x00"

var linePattern = regexp.MustCompile(`(?i)\bline[:= ]+(\d+)`)

// lineOf gives the last line number in the text of an error, which is the innermost; 0 when there is none.
func lineOf(text string) int {
	text, _, _ = strings.Cut(text, raiseMark)
	all := linePattern.FindAllStringSubmatch(text, -1)
	if len(all) == 0 {
		return 0
	}
	n, err := strconv.Atoi(all[len(all)-1][1])
	if err != nil {
		return 0
	}
	return n
}

// sandbox is the environment of chat templates: the library's filters and tests, without those that are random or read
// other templates, and control structures that stop at the deadline.
func sandbox() *exec.Environment {
	structures := map[string]parser.ControlStructureParser{}
	for _, name := range []string{"for", "if", "set", "macro", "filter", "raw", "with", "call", "do", "break", "continue", "generation"} {
		if p, ok := builtins.ControlStructures.Get(name); ok {
			structures[name] = timed(p)
		}
	}
	functions := map[string]any{"range": boundedRange, "raise_exception": raiseException}
	for _, name := range []string{"dict", "namespace", "joiner", "cycler"} {
		if f, ok := builtins.GlobalFunctions.Get(name); ok {
			functions[name] = f
		}
	}
	filters := exec.NewFilterSet(map[string]exec.FilterFunction{}).Update(builtins.Filters)
	// Replacing a filter that is there can't fail.
	_ = filters.Replace("tojson", toJSON)
	return &exec.Environment{
		Context:           exec.NewContext(functions).Update(builtins.GlobalVariables),
		Filters:           filters,
		Tests:             builtins.Tests,
		ControlStructures: exec.NewControlStructureSet(structures),
		Methods:           builtins.Methods,
	}
}

// timed wraps a control structure so that it stops at the deadline.
func timed(parse parser.ControlStructureParser) parser.ControlStructureParser {
	return func(p, args *parser.Parser) (nodes.ControlStructure, error) {
		s, err := parse(p, args)
		if err != nil {
			return nil, err
		}
		inner, ok := s.(exec.ControlStructure)
		if !ok {
			return s, nil
		}
		return timedStructure{inner}, nil
	}
}

type timedStructure struct{ exec.ControlStructure }

func (t timedStructure) Execute(r *exec.Renderer, block *nodes.ControlStructureBlock) error {
	if b, ok := r.Environment.Context.Get(budgetName); ok {
		if err := b.(*budget).check(); err != nil {
			return err
		}
	}
	return t.ControlStructure.Execute(r, block)
}

func boundedRange(_ *exec.Evaluator, params *exec.VarArgs) ([]int, error) {
	var n [3]int
	if len(params.Args) < 1 || len(params.Args) > 3 {
		return nil, exec.ErrInvalidCall(errors.New("range() takes 1 to 3 integers"))
	}
	for i, a := range params.Args {
		if !a.IsInteger() {
			return nil, exec.ErrInvalidCall(errors.New("range() takes 1 to 3 integers"))
		}
		n[i] = a.Integer()
	}
	start, stop, step := 0, n[0], 1
	if len(params.Args) > 1 {
		start, stop = n[0], n[1]
	}
	if len(params.Args) > 2 {
		step = n[2]
	}
	if step == 0 {
		return nil, exec.ErrInvalidCall(errors.New("range() with step 0"))
	}
	out := []int{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		if len(out) == maxChatRange {
			return nil, errTooLarge
		}
		out = append(out, i)
	}
	return out, nil
}

func raiseException(_ *exec.Evaluator, params *exec.VarArgs) (string, error) {
	message := "no message"
	if len(params.Args) > 0 {
		message = params.Args[0].String()
	}
	return "", errors.New(raiseMark + message)
}

// toJSON writes a value as models saw it in training: with a space after each comma and colon unless indented, and
// without escapes that only HTML needs. Keys are sorted.
func toJSON(_ *exec.Evaluator, in *exec.Value, params *exec.VarArgs) *exec.Value {
	indent := 0
	if v, ok := params.KwArgs["indent"]; ok {
		indent = v.Integer()
	} else if len(params.Args) > 0 {
		indent = params.Args[0].Integer()
	}
	if indent < 0 || indent > 16 {
		return exec.AsValue(exec.ErrInvalidCall(errors.New("tojson takes an indent of 0 to 16")))
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if indent > 0 {
		enc.SetIndent("", strings.Repeat(" ", indent))
	}
	if err := enc.Encode(in.ToGoSimpleType(false)); err != nil {
		return exec.AsValue(exec.ErrInvalidCall(fmt.Errorf("tojson: %w", err)))
	}
	text := bytes.TrimSuffix(buf.Bytes(), []byte("\n"))
	if indent > 0 {
		return exec.AsSafeValue(string(text))
	}
	return exec.AsSafeValue(spaced(text))
}

// spaced puts a space after each comma and colon of compact JSON that is not in a string.
func spaced(text []byte) string {
	out := make([]byte, 0, len(text)+len(text)/8)
	inString, escaped := false, false
	for _, c := range text {
		out = append(out, c)
		switch {
		case escaped:
			escaped = false
		case inString && c == '\\':
			escaped = true
		case c == '"':
			inString = !inString
		case !inString && (c == ',' || c == ':'):
			out = append(out, ' ')
		}
	}
	return string(out)
}
