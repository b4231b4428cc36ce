package proxy

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithMeeting(t *testing.T) {
	const added = `"bootstrap_host":"10.0.0.7","bootstrap_port":8998,"bootstrap_room":9223372036854775807}`
	for _, tc := range []struct{ name, reason, body, want, err string }{
		{name: "plain", reason: "the usual body", body: `{"model":"m","prompt":"a"}`, want: `{"model":"m","prompt":"a",` + added},
		{name: "empty", reason: "no comma after the brace", body: `{}`, want: `{` + added},
		{name: "space", reason: "white space stays", body: " {\n \"a\" : 1\n} \n", want: "{\n \"a\" : 1\n," + added},
		{name: "empty with space", reason: "no comma after the brace", body: "{ \n}", want: "{ \n" + added},
		{name: "numbers", reason: "no number loses digits", body: `{"seed":12345678901234567890.10,"t":1e-400}`, want: `{"seed":12345678901234567890.10,"t":1e-400,` + added},
		{name: "order and duplicates", reason: "the engine sees what the client wrote", body: `{"b":1,"a":2,"b":3}`, want: `{"b":1,"a":2,"b":3,` + added},
		{name: "brackets in strings", reason: "a string is not structure", body: `{"p":"}{][\",\\","q":["]",{"x":"}"}]}`, want: `{"p":"}{][\",\\","q":["]",{"x":"}"}],` + added},
		{name: "own room", reason: "a client cannot choose the room", body: `{"bootstrap_room":1,"a":2}`, want: `{"a":2,` + added},
		{name: "own room last", reason: "nor at the end", body: `{"a":2,"bootstrap_room":[1,2],"bootstrap_pair_key":"x"}`, want: `{"a":2,` + added},
		{name: "own room escaped", reason: "nor with escapes", body: `{"\u0062ootstrap_room":1}`, want: `{` + added},
		{name: "nested room", reason: "a field of an inner object is not the router's", body: `{"a":{"bootstrap_room":1}}`, want: `{"a":{"bootstrap_room":1},` + added},
		{name: "array", reason: "only objects are requests", body: `[1]`, err: "the body is not a JSON object"},
		{name: "nothing", reason: "only objects are requests", body: ``, err: "the body is not a JSON object"},
		{name: "cut", reason: "half a body", body: `{"a":1`, err: "it ends in the middle of an object"},
		{name: "cut string", reason: "half a body", body: `{"a":"x`, err: "the string at byte 5 does not end"},
		{name: "cut escape", reason: "half a body", body: `{"a":"x\`, err: "the string at byte 5 does not end"},
		{name: "cut array", reason: "half a body", body: `{"a":[1,2`, err: "what opens at byte 5 does not close"},
		{name: "trailing", reason: "two values", body: `{"a":1}{}`, err: "something follows the object at byte 7"},
		{name: "no value", reason: "not JSON", body: `{"a":}`, err: "a value is missing at byte 5"},
		{name: "no colon", reason: "not JSON", body: `{"a" 1}`, err: "a colon is missing at byte 5"},
		{name: "no comma", reason: "not JSON", body: `{"a":1 "b":2}`, err: "a comma or a brace is missing at byte 7"},
		{name: "no key", reason: "not JSON", body: `{1:2}`, err: "a key in quotes is missing at byte 1"},
		{name: "comma at the end", reason: "not JSON", body: `{"a":1,}`, err: "a key in quotes is missing at byte 7"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l, err := objectLayout([]byte(tc.body))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("%s: error %v, want %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := withMeeting([]byte(tc.body), l, meeting{host: "10.0.0.7", port: 8998, room: 1<<63 - 1})
			if string(got) != tc.want {
				t.Errorf("%s:\n got %s\nwant %s", tc.reason, got, tc.want)
			}
		})
	}
}

// FuzzBody compares with the standard library: whatever it accepts as an object must come out as the same object plus
// the meeting, and the router must never break a valid body or panic on any other.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, ` { "a" : [ {"b":"}\""} ] , "bootstrap_room": 3 } `, `{"a":1`, `{"\u0062ootstrap_port":1,"x":1e9}`, `[]`, "{\"a\":tru}"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		l, err := objectLayout(body)
		var want map[string]json.RawMessage
		if !json.Valid(body) || json.Unmarshal(body, &want) != nil || want == nil {
			if err == nil {
				withMeeting(body, l, meeting{host: "h", port: 1, room: 2}) // the engine refuses it
			}
			return
		}
		if err != nil {
			t.Fatalf("valid body refused: %v", err)
		}
		for key := range want {
			if bootstrapKeys[key] {
				delete(want, key)
			}
		}
		want["bootstrap_host"], want["bootstrap_port"], want["bootstrap_room"] = []byte(`"h"`), []byte(`1`), []byte(`2`)
		out := withMeeting(body, l, meeting{host: "h", port: 1, room: 2})
		var got map[string]json.RawMessage
		if err := json.Unmarshal(out, &got); err != nil {
			t.Fatalf("result is not JSON: %v: %s", err, out)
		}
		if d := cmp.Diff(want, got, cmp.Comparer(func(a, b json.RawMessage) bool { return bytes.Equal(a, b) })); d != "" {
			t.Fatalf("members (-want +got):\n%s", d)
		}
	})
}
