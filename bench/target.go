package bench

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
)

// API is the HTTP interface that a run uses.
type API string

const (
	// Completions is POST /v1/completions.
	Completions API = "completions"
	// Chat is POST /v1/chat/completions; a made prompt is one user message.
	Chat API = "chat"
	// Generate is SGLang's own POST /generate.
	Generate API = "generate"
)

// path is where the API's requests go.
func (a API) path() string {
	switch a {
	case Chat:
		return "/v1/chat/completions"
	case Generate:
		return "/generate"
	default:
		return "/v1/completions"
	}
}

// Target says how requests are put to a server, in words that are the same for all servers of a run.
type Target struct {
	API    API
	Model  string // "" leaves the field out
	Stream bool
	Header http.Header // sent with every request

	IgnoreEOS   bool     // ask for exactly so many tokens: a field that OpenAI itself does not know
	Temperature *float64 // nil leaves it to the server
	SeedSent    bool     // send each request's own seed

	// ContinuousUsage asks for the token count in every chunk, which makes ITL exact where a chunk holds several tokens.
	ContinuousUsage bool
	// Extra fields go into every body and win over the others.
	Extra map[string]json.RawMessage
}

// ParseURL reads the base URL of a server; a path of /v1 at its end, which OpenAI's clients want, is dropped.
func ParseURL(text string) (string, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is no URL: %w", text, err)
	case u.Scheme != "http" && u.Scheme != "https":
		return "", fmt.Errorf("%q has scheme %s: give http or https", text, u.Scheme)
	case u.Host == "":
		return "", fmt.Errorf("%q names no host: give http://host:port", text)
	case u.RawQuery != "" || u.Fragment != "":
		return "", fmt.Errorf("%q has a query or fragment: give the server's base URL", text)
	}
	return strings.TrimSuffix(strings.TrimSuffix(u.String(), "/"), "/v1"), nil
}

// ParseHeader reads "Name: value" or "Name=value".
func ParseHeader(text string) (name, value string, err error) {
	at := strings.IndexAny(text, ":=")
	if at <= 0 {
		return "", "", fmt.Errorf("%q is no header: give \"Name: value\"", text)
	}
	name, value = strings.TrimSpace(text[:at]), strings.TrimSpace(text[at+1:])
	if strings.ContainsAny(name, " \t\r\n") || strings.ContainsAny(value, "\r\n") {
		return "", "", fmt.Errorf("%q is no header: its name must have no spaces, and its value one line", text)
	}
	return name, value, nil
}

// Accepts says whether prompts of this form can be sent; the error names the remedy.
func (t *Target) Accepts(p Prompt) error {
	switch {
	case len(p.Messages) > 0 && t.API != Chat:
		return fmt.Errorf("messages need --api chat, not %s", t.API)
	case len(p.IDs) > 0 && t.API == Chat:
		return fmt.Errorf("token ids need --api completions or generate: chat takes text")
	}
	return nil
}

// body gives the JSON of one request.
func (t *Target) body(r Request, p Prompt) ([]byte, error) {
	body := map[string]any{"stream": t.Stream}
	if t.Model != "" && t.API != Generate {
		body["model"] = t.Model
	}
	if r.Priority != nil {
		body["priority"] = *r.Priority
	}
	sampling := body
	maxTokens := "max_tokens"
	if t.API == Generate {
		sampling, maxTokens = map[string]any{}, "max_new_tokens"
		body["sampling_params"] = sampling
	}
	if r.OutputTokens > 0 {
		sampling[maxTokens] = r.OutputTokens
	}
	if t.IgnoreEOS {
		sampling["ignore_eos"] = true
	}
	if t.Temperature != nil {
		sampling["temperature"] = *t.Temperature
	}
	if t.SeedSent {
		name := "seed"
		if t.API == Generate {
			name = "sampling_seed"
		}
		sampling[name] = r.Seed >> 33 // 31 bits fit every server's integer
	}
	if t.Stream && t.API != Generate {
		options := map[string]bool{"include_usage": true}
		if t.ContinuousUsage {
			options["continuous_usage_stats"] = true
		}
		body["stream_options"] = options
	}
	switch {
	case t.API == Chat && len(p.Messages) > 0:
		body["messages"] = p.Messages
	case t.API == Chat:
		body["messages"] = []map[string]string{{"role": "user", "content": p.Text}}
	case t.API == Generate && len(p.IDs) > 0:
		body["input_ids"] = p.IDs
	case t.API == Generate:
		body["text"] = p.Text
	case len(p.IDs) > 0:
		body["prompt"] = p.IDs
	default:
		body["prompt"] = p.Text
	}
	for name, value := range t.Extra {
		body[name] = value
	}
	return json.Marshal(body)
}
