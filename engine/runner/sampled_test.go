package runner

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// fill gives every number below v another value, and every list two elements: a field that the codec forgets shows.
func fill(v reflect.Value, next *int) {
	*next++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), next)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), next)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), next)
		}
	case reflect.Int32:
		v.SetInt(int64(*next * 1000))
	case reflect.Float32:
		v.SetFloat(float64(*next) / 8)
	default:
		panic("a field of " + v.Kind().String() + ": teach it to the codec and to this test")
	}
}

func filled(t testing.TB) []scheduler.Sampled {
	t.Helper()
	var full []scheduler.Sampled
	next := 0
	fill(reflect.ValueOf(&full).Elem(), &next)
	return full
}

func TestSampledRoundTrip(t *testing.T) {
	tests := []struct {
		name string
		in   []scheduler.Sampled
	}{
		{"nothing", []scheduler.Sampled{}},
		{"every field", filled(t)},
		{"a row that sampled nothing", []scheduler.Sampled{{}, {Token: 1<<31 - 1, Logprob: -0.5}}},
		{"a negative token", []scheduler.Sampled{{Token: -1}, {Token: -1 << 31}}},
		{"prompt alone", []scheduler.Sampled{{Logprobs: &scheduler.Logprobs{Prompt: make([]request.TokenLogprobs, 3)}}}},
		{"empty logprobs", []scheduler.Sampled{{Logprobs: &scheduler.Logprobs{}}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			raw := appendSampled(nil, test.in)
			got, err := parseSampled(raw)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.in, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			for n := range raw {
				if got, err := parseSampled(raw[:n]); err == nil {
					t.Errorf("the first %d of %d bytes are read as %v", n, len(raw), got)
				}
			}
			if _, err := parseSampled(append(raw, 0)); err == nil {
				t.Error("a byte too many: want an error")
			}
		})
	}
}

// FuzzParseSampled checks that damaged bytes are refused or read as what is written back the same way.
func FuzzParseSampled(f *testing.F) {
	f.Add([]byte{0})
	f.Add(appendSampled(nil, filled(f)))
	f.Fuzz(func(t *testing.T, raw []byte) {
		sampled, err := parseSampled(raw)
		if err != nil {
			return
		}
		again, err := parseSampled(appendSampled(nil, sampled))
		if err != nil || len(again) != len(sampled) {
			t.Fatalf("%v is read again as %v, %v", sampled, again, err)
		}
	})
}
