package query

import (
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, raw string
		want      url.Values
		wantErr   string
	}{
		{"nothing", "", url.Values{}, ""},
		{"several", "a=1&b=%3B&a=2&c", url.Values{"a": {"1", "2"}, "b": {";"}, "c": {""}}, ""},
		{"semicolon", "limit=1;slowest=2", nil, `"limit=1;slowest=2" has a semicolon: part parameters with &`},
		{"a semicolon later", "a=1&limit=1;slowest=2&b=2", nil, `"limit=1;slowest=2" has a semicolon`},
		{"escape of a value", "a=1&b=%zz", nil, `"b=%zz" can't be read: invalid URL escape "%zz"; write a percent sign as %25`},
		{"escape of a name", "%=1", nil, `"%=1" can't be read: invalid URL escape "%"`},
		{"long", "a=%" + strings.Repeat("x", 1000), nil, `xx…" can't be read`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.raw)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("the error is %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// FuzzParse: what is read is what net/url reads when it finds no fault, and an error is short.
func FuzzParse(f *testing.F) {
	f.Add("a=1&b=2")
	f.Add("a;b=%")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := Parse(raw)
		want, wantErr := url.ParseQuery(raw)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("%v, net/url says %v", err, wantErr)
		}
		if err != nil {
			if len(err.Error()) > 2000 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}
