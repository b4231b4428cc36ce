package harness

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// Client asks as one client does: with headers of its own on every request. The zero Client has none. A Client is safe for
// concurrent use.
type Client struct{ Header http.Header }

// StatusError is an answer other than 200.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.Status, e.Body) }

// Send sends a JSON body. The caller closes the answer's body, whatever the status is.
func (c Client) Send(ctx context.Context, url string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("POST %s: %w", url, err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for name, values := range c.Header {
		req.Header[name] = values
	}
	return http.DefaultClient.Do(req)
}

// Post sends a JSON body, reads the whole answer, streamed or not, and decodes it into to, which may be nil. An answer other
// than 200 is a *StatusError.
func (c Client) Post(ctx context.Context, url string, body, to any) error {
	answer, err := c.Send(ctx, url, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return fmt.Errorf("POST %s: read the answer: %w", url, err)
	}
	if answer.StatusCode != http.StatusOK {
		return &StatusError{answer.StatusCode, string(text)}
	}
	if to == nil {
		return nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fmt.Errorf("POST %s: %w in %s", url, err, text)
	}
	return nil
}

// maxEvent bounds an event of a stream, in bytes.
const maxEvent = 4 << 20

// Stream asks for a stream and gives each event's data to event, in order, until the stream ends or event says that the
// client goes away, as clients do: without a word. An answer other than 200 is a *StatusError.
func (c Client) Stream(ctx context.Context, url string, body map[string]any, event func(data string) (stay bool)) error {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	asked := map[string]any{"stream": true}
	for name, value := range body {
		asked[name] = value
	}
	asked["stream"] = true
	answer, err := c.Send(ctx, url, asked)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body) // what came of it
		return &StatusError{answer.StatusCode, string(text)}
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && !event(data) {
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("POST %s: read the stream: %w", url, err)
	}
	return nil
}

// LeaveAfter is an event function of Stream that goes away at event number n, counted from 1; 0 or less: never.
func LeaveAfter(n int) func(string) bool {
	return func(string) bool {
		n--
		return n != 0
	}
}

// OpenSession opens a streaming session on an engine and gives its id.
func (c Client) OpenSession(ctx context.Context, url string) (id string, err error) {
	return id, c.Post(ctx, url+"/open_session", map[string]any{"capacity_of_str_len": 1000, "streaming": true}, &id)
}

// CloseSession closes it.
func (c Client) CloseSession(ctx context.Context, url, id string) error {
	return c.Post(ctx, url+"/close_session", map[string]any{"session_id": id}, nil)
}

// Talk has a session with a turn for each body of /generate, one after another.
func (c Client) Talk(ctx context.Context, url string, turns ...map[string]any) error {
	id, err := c.OpenSession(ctx, url)
	if err != nil {
		return err
	}
	for i, turn := range turns {
		asked := map[string]any{"session_params": map[string]any{"id": id}}
		for name, value := range turn {
			asked[name] = value
		}
		if err := c.Post(ctx, url+"/generate", asked, nil); err != nil {
			return fmt.Errorf("turn %d: %w", i, err)
		}
	}
	return c.CloseSession(ctx, url, id)
}

// Post is that of a Client without headers of its own.
func Post(ctx context.Context, url string, body, to any) error {
	return Client{}.Post(ctx, url, body, to)
}

// Get reads what a server answers with status 200, and ends the test on any other answer.
func Get(t testing.TB, url string) string {
	t.Helper()
	answer, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: status %d: %.2000s: %v", url, answer.StatusCode, text, err)
	}
	return string(text)
}

// Tokens gives n token ids that every model of tests has, none of them special.
func Tokens(rng *rand.Rand, n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(10 + rng.IntN(480))
	}
	return ids
}
