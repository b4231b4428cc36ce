package tokenizer

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func withTemplate(t *testing.T, source string) *Tokenizer {
	t.Helper()
	chat, err := parseChatTemplate(source)
	if err != nil {
		t.Fatal(err)
	}
	return &Tokenizer{bos: "<s>", eos: "</s>", chat: chat}
}

func TestChatTemplates(t *testing.T) {
	messages := []Message{
		{Role: "system", Content: "Be brief."},
		{Role: "user", Content: " Hi <b> & 'you' \n", Extra: map[string]any{"name": "ann"}},
		{Role: "assistant", Content: "Hello."},
	}
	extra := map[string]any{"tools": []any{map[string]any{"type": "function", "name": "a<b", "args": []any{1, 2.5, nil, true}}}}
	cases := []struct {
		name, reason, source, want string
		prompt                     bool
	}{
		{
			name: "default", reason: "turns between marks, then the assistant's header", source: defaultChatTemplate, prompt: true,
			want: "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <b> & 'you' \n<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n",
		},
		{
			name: "llama-3 style", reason: "loop, set, trim, tokens; nothing is escaped",
			source: "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start|>' + message['role'] + '<|end|>\n\n'+ message['content'] | trim + '<|eot|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}",
			want:   "<s><|start|>system<|end|>\n\nBe brief.<|eot|><|start|>user<|end|>\n\nHi <b> & 'you'<|eot|><|start|>assistant<|end|>\n\nHello.<|eot|>",
		},
		{
			name: "white space", reason: "a line that holds only a block leaves nothing", prompt: true,
			source: "{%- for m in messages %}\n  {% if m.role == 'user' %}\nU:{{ m.content.strip() }}\n  {%- elif m.role != 'system' -%}\n  A\n  {% endif %}\n{% endfor %}\n{% if add_generation_prompt %}\n>{% endif %}",
			want:   "U:Hi <b> & 'you'A\n>",
		},
		{
			name: "values", reason: "slices, tests, namespaces, attributes",
			source: "{%- set ns = namespace(n=0) -%}{%- for m in messages[1:] -%}{%- set ns.n = ns.n + m.content | length -%}{%- endfor -%}{{ ns.n }} {{ messages[1].name }} {{ messages[-1]['role'] }} {{ x is defined }} {{ tools is not none }} {{ range(2, 8, 3) | list }} {{ messages[0].content.split(' ')[0] }}",
			want:   "23 ann assistant False True [2, 5] Be",
		},
		{
			name: "tojson", reason: "as Python writes it: spaces after , and :, no HTML escapes", source: "{{ tools | tojson }}",
			want: `[{"args": [1, 2.5, null, true], "name": "a<b", "type": "function"}]`,
		},
		{
			name: "tojson indented", source: "{{ tools[0].args | tojson(indent=2) }}", want: "[\n  1,\n  2.5,\n  null,\n  true\n]",
		},
		{name: "macro", source: "{% macro turn(r) %}[{{ r }}]{% endmacro %}{% for m in messages %}{{ turn(m.role) }}{% endfor %}", want: "[system][user][assistant]"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := withTemplate(t, c.source).ApplyChatTemplate(messages, c.prompt, extra, maxChatBytes)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.reason, diff)
			}
		})
	}
}

func TestChatTemplateErrors(t *testing.T) {
	cases := []struct {
		name, reason, source string
		want                 string // of the error
		line                 int
	}{
		{"raise", "what the template says, and where", "a\n{% for m in messages %}\n{{ raise_exception('roles must alternate, not ' + m.role) }}{% endfor %}", "chat template, line 3: roles must alternate, not user", 3},
		{"undefined", "", "{{ 1 }}\n\n{{ nothing.at.all }}", "chat template, line 3: ", 3},
		{"include", "no other template or file can be read", "{% include '/etc/passwd' %}", "chat template, line 1: ControlStructure 'include' not found", 1},
		{"range", "", "{% for i in range(1000000) %}{% endfor %}", "range() of more than 100000 elements", 1},
		{"size", "", "{% for i in range(100000) %}{{ 'abcdefghij' * 100 }}{% endfor %}", "renders too much: more than 16777216 bytes", 1},
		{"time", "loops without output end too", "{% for i in range(50000) %}{% for j in range(50000) %}{% set x = 1 %}{% endfor %}{% endfor %}", "renders for too long", 1},
		{"syntax", "", "ok\n{% endfor %}", "chat template, line 2: ", 2},
		{"syntax without a place", "the library does not say where", "ok\n{% for m in %}", "chat template: ", 0},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			chat, err := parseChatTemplate(c.source)
			if err == nil {
				if c.name == "time" {
					chat.maxTime = 50 * time.Millisecond
				}
				_, err = (&Tokenizer{chat: chat}).ApplyChatTemplate([]Message{{Role: "user", Content: "x"}}, false, nil, maxChatBytes)
			}
			var te *TemplateError
			if !errors.As(err, &te) || te.Line != c.line || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: error %v, want one of line %d with %q", c.reason, err, c.line, c.want)
			}
		})
	}
}

// What is too long is not rendered to its end: the error of the last turn does not come.
func TestChatStopsAtItsLimit(t *testing.T) {
	const source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ raise_exception('rendered all') }}"
	for _, c := range []struct {
		name     string
		maxBytes int
		tooLong  bool
	}{{"all fits", 30, false}, {"a byte is missing", 29, true}, {"nothing fits", 0, true}} {
		t.Run(c.name, func(t *testing.T) {
			_, err := withTemplate(t, source).ApplyChatTemplate(slices.Repeat([]Message{{Role: "user", Content: "abc"}}, 10), false, nil, c.maxBytes)
			var te *TemplateError
			if !errors.As(err, &te) || errors.Is(err, ErrChatTooLong) != c.tooLong {
				t.Errorf("error %v; want it too long: %v", err, c.tooLong)
			}
		})
	}
}

// Content of messages is data: nothing in it is evaluated.
func TestChatContentIsData(t *testing.T) {
	content := "{{ 1 + 1 }}{% for %}\x00<|im_end|>"
	got, err := withTemplate(t, "{{ messages[0].content }}").ApplyChatTemplate([]Message{{Role: "user", Content: content}}, false, nil, maxChatBytes)
	if err != nil || got != content {
		t.Errorf("%q, %v", got, err)
	}
}

func FuzzChatTemplate(f *testing.F) {
	f.Add(defaultChatTemplate)
	f.Add("{% for m in messages %}{{ m | tojson }}{% endfor %}")
	f.Fuzz(func(t *testing.T, source string) {
		chat, err := parseChatTemplate(source)
		if err != nil {
			return
		}
		chat.maxTime = 100 * time.Millisecond
		_, err = (&Tokenizer{chat: chat}).ApplyChatTemplate([]Message{{Role: "user", Content: "x"}}, true, nil, maxChatBytes)
		var te *TemplateError
		if err != nil && !errors.As(err, &te) {
			t.Errorf("error without a place: %v", err)
		}
	})
}
