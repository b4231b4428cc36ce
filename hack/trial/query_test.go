package trial

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseVector(t *testing.T) {
	for _, test := range []struct {
		name, body string
		want       []Series
		fails      bool
	}{
		{
			name: "two series",
			body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"a":"b"},"value":[1.5,"2"]},{"metric":{},"value":[1.5,"0.25"]}]}}`,
			want: []Series{{Labels: map[string]string{"a": "b"}, Value: 2}, {Labels: map[string]string{}, Value: 0.25}},
		},
		{name: "none", body: `{"status":"success","data":{"resultType":"vector","result":[]}}`},
		{name: "refused", body: `{"status":"error","error":"bad expression"}`, fails: true},
		{name: "another kind", body: `{"status":"success","data":{"resultType":"matrix","result":[]}}`, fails: true},
		{name: "no answer of Prometheus", body: `<html>`, fails: true},
		{name: "a value that is none", body: `{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":[1,"x"]}]}}`, fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseVector([]byte(test.body))
			if (err != nil) != test.fails {
				t.Fatalf("error %v, want one: %t", err, test.fails)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("series (-want +got):\n%s", diff)
			}
		})
	}
}
