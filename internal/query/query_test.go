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
		{"not known", "a=1&slowset=5&zzz", nil, `"slowset" is not known: the parameters are a, b, c`},
		{"not known and empty", "&=", nil, `"" is not known`},
		{"a name that is not known and long", strings.Repeat("x", 1000), nil, `xx…" is not known`},
		{"twice", "c=1&c=1", nil, `"c" comes 2 times: give it once`},
		{"long", "a=%" + strings.Repeat("x", 1000), nil, `xx…" can't be read`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := Parse(tc.raw, []Param{{"a", true}, {"b", false}, {"c", false}})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if (err == nil) != (tc.wantErr == "") || err != nil && !strings.Contains(err.Error(), tc.wantErr) {
				t.Errorf("the error is %v, want %q", err, tc.wantErr)
			}
		})
	}
}

// TestNoParameters: a route without parameters says so.
func TestNoParameters(t *testing.T) {
	if _, err := Parse("name[]=up", nil); err == nil || err.Error() != `"name[]" is not known: there are no parameters here` {
		t.Errorf("the error is %v", err)
	}
	if values, err := Parse("", nil); err != nil || len(values) > 0 {
		t.Errorf("nothing gives %v, %v", values, err)
	}
}

// FuzzParse: what is read is what net/url reads when it finds no fault, and an error is short.
func FuzzParse(f *testing.F) {
	f.Add("a=1&b=2")
	f.Add("a;b=%")
	f.Fuzz(func(t *testing.T, raw string) {
		got, err := read(raw)
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
