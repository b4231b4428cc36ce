package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/rank"
)

// evictions reads the variable alone.
func evictions(text string) ([]float64, error) {
	var r rank.Config
	err := readMetricsEnvironment(&r, func(name string) (string, bool) { return text, name == evictionVariable })
	return r.Metrics.EvictionBuckets, err
}

// TestEvictionBounds: what stands in the variable is a list of bounds or refused, by its name, with the remedy, and shortly.
func TestEvictionBounds(t *testing.T) {
	many := strings.TrimSuffix(strings.Repeat("1,", 1<<19), ",") // 1 MiB
	for _, tc := range []struct {
		name, text string
		want       []float64
		wantErr    string
	}{
		{"unsorted", "1, 0.5 ,2e-3", []float64{0.002, 0.5, 1}, ""},
		{"zero", "0", []float64{0}, ""},
		{"hexadecimal", "0x1p-2", []float64{0.25}, ""},
		{"nothing", "", nil, ""},
		{"white space", " \t\n", nil, ""},
		{"garbage", "\x00\xff;DROP", nil, "is no number: give seconds with commas between"},
		{"JSON", "[0.1, 0.2]", nil, `"[0.1" is no number`},
		{"semicolons", "0.1;0.2", nil, `"0.1;0.2" is no number`},
		{"comma at the end", "0.1,", nil, `"" is no number`},
		{"NaN", "0.1,NaN", nil, "bound NaN is not finite: leave it out"},
		{"+Inf", "0.1,+Inf", nil, "bound +Inf is not finite: leave it out, +Inf is always there"},
		{"beyond floating point", "1e400", nil, `"1e400" is no number`},
		{"negative", "-1,2", nil, "bound -1 is negative: give 0 or more"},
		{"twice", "1,1.0", nil, "bound 1 is there twice: name it once"},
		{"too many", many, nil, "524288 bounds are too many; at most 512 are allowed"},
		{"one long word", strings.Repeat("9", 1<<20), nil, "is no number"},
		{"long and no UTF-8", strings.Repeat("\xc3", 1<<20), nil, "is no number"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := evictions(tc.text)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			switch {
			case tc.wantErr == "" && err != nil:
				t.Error(err)
			case tc.wantErr != "" && (err == nil || !strings.HasPrefix(err.Error(), evictionVariable+" is ") || !strings.Contains(err.Error(), tc.wantErr)):
				t.Errorf("the error is %v, want the variable and %q", err, tc.wantErr)
			case err != nil && len(err.Error()) > 1000:
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func FuzzEvictionBounds(f *testing.F) {
	for _, text := range []string{"1,0.5", "NaN", "-0,0", "1e-400,0", ",", "0x", "1_0"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := evictions(text)
		if err != nil {
			if !strings.HasPrefix(err.Error(), evictionVariable+" is ") || len(err.Error()) > 2000 || got != nil {
				t.Errorf("%v, %v", got, err)
			}
			return
		}
		if !slices.IsSorted(got) || len(slices.Compact(slices.Clone(got))) != len(got) || len(got) > 0 && !(got[0] >= 0) {
			t.Errorf("%q gives %v", text, got)
		}
	})
}

// TestBucketFlags: the same of the flags, whose errors pflag begins.
func TestBucketFlags(t *testing.T) {
	for _, flag := range []string{"--bucket-time-to-first-token", "--bucket-inter-token-latency", "--bucket-e2e-request-latency", "--prompt-tokens-buckets", "--generation-tokens-buckets"} {
		rule := ""
		if strings.HasSuffix(flag, "-tokens-buckets") {
			rule = "custom "
		}
		for _, tc := range []struct{ name, value, wantErr string }{
			{"unsorted", rule + "3 1 2", ""},
			{"garbage", rule + "\x00\xff;DROP", "is not a number"},
			{"NaN", rule + "1 NaN", "bound NaN is not finite"},
			{"negative", rule + "-1 2", "bound -1 is negative"},
			{"twice", rule + "1 1.0", "bound 1 is there twice"},
			{"too many", rule + strings.Repeat("1 ", 1<<19), "524288 bounds are too many"},
			{"one long word", rule + strings.Repeat("9", 1<<20), "not a number"},
		} {
			t.Run(flag+" "+tc.name, func(t *testing.T) {
				cfg, _, err := parse("--model-path", "/m", flag+"="+tc.value)
				if err == nil {
					_, err = cfg.Validate()
				}
				if (err == nil) != (tc.wantErr == "") || err != nil && (!strings.Contains(err.Error(), tc.wantErr) || !strings.Contains(err.Error(), flag)) {
					t.Errorf("the error is %.300v, want the flag and %q", err, tc.wantErr)
				}
				if err == nil {
					return
				}
				// The flag comes first and the remedy last, so both are left.
				if text := short(err.Error()); len(text) > maxErrorBytes+100 || !strings.Contains(text, flag) || !strings.Contains(text, tc.wantErr) {
					t.Errorf("what is printed has %d bytes: %.300s", len(text), text)
				}
			})
		}
	}
}
