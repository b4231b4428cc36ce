package peer

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNonce(t *testing.T) {
	a, b := Nonce(), Nonce()
	if !ValidNonce(a) || !ValidNonce(b) || a == b {
		t.Errorf("nonces %s and %s: want valid ones, never the same", a, b)
	}
	for _, bad := range []string{"", a[2:], a + "00", "zz" + a[2:]} {
		if ValidNonce(bad) {
			t.Errorf("%q passes as a nonce", bad)
		}
	}
}

// TestProof: whatever differs, the proof differs.
func TestProof(t *testing.T) {
	said := [][]byte{[]byte("hello"), []byte("challenge")}
	right := Proof([]byte("secret"), "test 1 dial", said...)
	if !Proven(right, []byte("secret"), "test 1 dial", said...) || len(right) != ProofBytes {
		t.Error("a right proof is refused")
	}
	for _, tt := range []struct {
		name, reason string
		secret       string
		label        string
		said         []string
	}{
		{"secret", "who does not know it can't prove it", "secreT", "test 1 dial", []string{"hello", "challenge"}},
		{"no secret", "an empty key is no pass", "", "test 1 dial", []string{"hello", "challenge"}},
		{"side", "a proof must not be reflected", "secret", "test 1 listen", []string{"hello", "challenge"}},
		{"cut", "the same bytes in other parts are another conversation", "secret", "test 1 dial", []string{"hellochal", "lenge"}},
		{"joined", "parts have lengths", "secret", "test 1 dial", []string{"hellochallenge"}},
		{"label", "the label is a part of its own", "secret", "test 1 dialhello", []string{"challenge"}},
		{"order", "who spoke first matters", "secret", "test 1 dial", []string{"challenge", "hello"}},
	} {
		var parts [][]byte
		for _, s := range tt.said {
			parts = append(parts, []byte(s))
		}
		if Proven(right, []byte(tt.secret), tt.label, parts...) {
			t.Errorf("%s: %s", tt.name, tt.reason)
		}
	}
}

type note struct {
	Text string `json:"text"`
}

func TestJSON(t *testing.T) {
	var b bytes.Buffer
	wrote, err := WriteJSON(&b, note{"a"})
	if err != nil {
		t.Fatal(err)
	}
	var got note
	read, err := ReadJSON(&b, 100, &got)
	if diff := cmp.Diff(note{"a"}, got); diff != "" || err != nil || !bytes.Equal(wrote, read) {
		t.Errorf("wrote %s, read %s, %v (-want +got):\n%s", wrote, read, err, diff)
	}
	for _, tt := range []struct{ name, frame, want string }{
		{"too long", "\x00\x00\x00\x65", "at most 100"},
		{"longer than memory", "\xff\xff\xff\xff", "at most 100"},
		{"cut", "\x00\x00\x00\x05{\"te", "unexpected EOF"},
		{"unknown field", "\x00\x00\x00\x08{\"no\":1}", "unknown field"},
		{"two values", "\x00\x00\x00\x04{}{}", "more than one JSON value"},
		{"rest", "\x00\x00\x00\x03{}x", "more than one JSON value"},
	} {
		if _, err := ReadJSON(strings.NewReader(tt.frame), 100, new(note)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
}

func FuzzReadJSON(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x0c{\"text\":\"a\"}"))
	f.Add([]byte("\x00\x00\x00\x02{}{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var n note
		b, err := ReadJSON(bytes.NewReader(data), 64, &n)
		if err == nil && (len(b) > 64 || !bytes.HasPrefix(data[4:], b)) {
			t.Errorf("read %q from %q", b, data)
		}
	})
}

func TestLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "127.0.0.1": true, "127.9.9.9": true, "::1": true, "::ffff:127.0.0.1": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "localhost.example": false, "127.0.0.1:80": false, "Localhost2": false,
	} {
		if Loopback(host) != want {
			t.Errorf("Loopback(%q) is %t", host, !want)
		}
	}
}
