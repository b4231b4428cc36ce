package owned

import (
	"encoding/json"
	"testing"
)

func TestCoversValue(t *testing.T) {
	tests := []struct {
		name   string
		reason string
		live   string
		want   string
		covers bool
	}{
		{"equal", "nothing differs", `{"a":1,"b":["x"]}`, `{"a":1,"b":["x"]}`, true},
		{"defaults", "what is not wanted may be anything", `{"a":1,"b":2,"c":{"d":1}}`, `{"a":1,"c":{}}`, true},
		{"another value", "a field that is set must be so", `{"a":1}`, `{"a":2}`, false},
		{"missing", "a field that is set must be there", `{}`, `{"a":{"b":1}}`, false},
		{"empty and missing", "an empty object sets nothing", `{}`, `{"a":{},"b":[],"c":null}`, true},
		{"a shorter list", "an item is gone", `{"a":[1]}`, `{"a":[1,2]}`, false},
		{"another order", "items without names have a place", `{"a":[2,1]}`, `{"a":[1,2]}`, false},
		{"an injected container", "items with names are found by them", `{"a":[{"name":"side"},{"name":"engine","x":1,"y":2}]}`, `{"a":[{"name":"engine","x":1}]}`, true},
		{"a changed container", "and compared", `{"a":[{"name":"side","x":1},{"name":"engine","x":2}]}`, `{"a":[{"name":"engine","x":1}]}`, false},
		{"another kind", "a text is no list", `{"a":"1"}`, `{"a":["1"]}`, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var live, want any
			if err := json.Unmarshal([]byte(test.live), &live); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(test.want), &want); err != nil {
				t.Fatal(err)
			}
			if got := coversValue(live, want); got != test.covers {
				t.Errorf("%s: covers is %t, want %t", test.reason, got, test.covers)
			}
		})
	}
}
