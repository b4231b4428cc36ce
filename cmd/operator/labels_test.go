package main

import (
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
)

func TestRepeatedLabels(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		args         []string
		want         map[string]string
		wantErr      string
	}{
		{"none", "the default stays", nil, map[string]string{"a": "0"}, ""},
		{"several", "each once", []string{"--labels", `b=1,"c=2,3"`}, map[string]string{"b": "1", "c": "2,3"}, ""},
		{"several arguments", "they add up, and the later one wins, as with all flags", []string{"--labels", "b=1", "--labels=b=2,c=3"}, map[string]string{"b": "2", "c": "3"}, ""},
		{"twice", "one of them would not count", []string{"--labels", "b=1,c=2,b=1"}, nil, `it has "b" twice`},
		{"no value", "it says nothing", []string{"--labels", "b"}, nil, "b must be formatted as key=value"},
		{"no key", "it names nothing", []string{"--labels", "b=1,=2"}, nil, "has an empty key"},
		{"comma at the end", "nothing follows", []string{"--labels", "b=1,"}, nil, "has an empty key"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			flags, got := pflag.NewFlagSet("", pflag.ContinueOnError), map[string]string(nil)
			flags.SetOutput(io.Discard)
			flags.StringToStringVar(&got, "labels", map[string]string{"a": "0"}, "")
			refuseRepeated(flags)
			err := flags.Parse(tc.args)
			if (err == nil) != (tc.wantErr == "") || err != nil && (!strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), "--labels")) {
				t.Fatalf("%s: the error is %v, want %q", tc.reason, err, tc.wantErr)
			}
			if diff := cmp.Diff(tc.want, got); err == nil && diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

// TestWatchNamespaces: an empty name would be all namespaces.
func TestWatchNamespaces(t *testing.T) {
	for value, want := range map[string]string{"team-a,": "--watch-namespaces has an empty name", "a,b,a": `--watch-namespaces has "a" twice`} {
		c := command()
		c.SetArgs([]string{"--engine-image", "e", "--router-image", "r", "--namespace", "n", "--watch-namespaces", value})
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--watch-namespaces %s: the error is %v, want %q", value, err, want)
		}
	}
}
