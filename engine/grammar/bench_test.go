package grammar

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// realistic is a vocabulary of n tokens: all bytes, then words as a trained one has them, of letters with and without a
// space before, numbers, and runs of punctuation and white space.
func realistic(n int) Vocabulary {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	var more []string
	for len(more) < n-257 {
		var word []byte
		switch r.IntN(10) {
		case 0:
			for range 1 + r.IntN(4) {
				word = append(word, `"{}[]:,._-()/\'`[r.IntN(15)])
			}
		case 1:
			for range 1 + r.IntN(3) {
				word = append(word, byte('0'+r.IntN(10)))
			}
			if r.IntN(3) == 0 {
				word = append(word, `,]}"`[r.IntN(4)])
			}
		case 2:
			for range 1 + r.IntN(12) {
				word = append(word, " \n\t"[r.IntN(3)])
			}
		case 3:
			for range 1 + r.IntN(3) {
				word = append(word, string(rune(0x80+r.IntN(0x9000)))...)
			}
		default:
			if r.IntN(2) == 0 {
				word = append(word, ' ')
			}
			for range 1 + r.IntN(9) {
				word = append(word, "etaoinshrdlucmfwypvbgkjqxz"[int(25*r.Float64()*r.Float64())])
			}
			if r.IntN(20) == 0 {
				word = append(word, `",:}`[r.IntN(4)])
			}
		}
		if s := string(word); !seen[s] {
			seen[s] = true
			more = append(more, s)
		}
	}
	return letters(more...)
}

const personSchema = `{"type":"object","properties":{
"name":{"type":"string","minLength":1,"maxLength":200},"age":{"type":"integer","minimum":0,"maximum":150},
"email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":20},
"address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"},
"country":{"enum":["DE","FR","US","JP"]}},"required":["street","zip"]},"notes":{},"score":{"type":"number"}},
"required":["name","age","tags"]}`

var benchSpecs = []struct {
	name string
	spec Spec
}{
	{"person", Spec{JSONSchema, personSchema}},
	{"any object", Spec{JSONObject, ""}},
	{"regex", Spec{Regex, `(\p{L}{1,20} ?){1,50}: \d{4}-\d{2}-\d{2}`}},
}

func BenchmarkCompile(b *testing.B) {
	for _, n := range []int{1000, 32000, 128000} {
		v := realistic(n)
		for _, bench := range benchSpecs {
			b.Run(fmt.Sprintf("vocab=%d/%s", n, bench.name), func(b *testing.B) {
				c := newTestCompiler(b, v, Config{})
				for range b.N {
					if _, err := c.compile(context.Background(), bench.spec); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkMask walks through random texts: cold in a grammar that has seen nothing, warm in one that saw other texts.
func BenchmarkMask(b *testing.B) {
	for _, n := range []int{1000, 32000, 128000} {
		v := realistic(n)
		for _, bench := range benchSpecs {
			for _, warm := range []bool{false, true} {
				b.Run(fmt.Sprintf("vocab=%d/%s/warm=%v", n, bench.name, warm), func(b *testing.B) {
					c := newTestCompiler(b, v, Config{})
					r := rand.New(rand.NewPCG(3, 4))
					mask := make([]uint64, c.Words())
					allowed := make([]int32, 0, n)
					text := func() {
						g := must(c.Compile(context.Background(), bench.spec))
						if !warm {
							g = must(c.compile(context.Background(), bench.spec))
						}
						m := g.Matcher()
						for range 100 {
							b.StartTimer()
							if err := m.Mask(mask); err != nil {
								b.Fatal(err)
							}
							b.StopTimer()
							allowed = allowed[:0]
							for id := range int32(n) {
								if mask[id>>6]>>(id&63)&1 == 1 {
									allowed = append(allowed, id)
								}
							}
							id := allowed[r.IntN(len(allowed))]
							b.StartTimer()
							if err := m.Accept(id); err != nil {
								b.Fatal(err)
							}
							b.StopTimer()
							if m.Done() || m.CanEnd() && r.IntN(10) == 0 {
								m = g.Matcher()
							}
						}
					}
					b.StopTimer()
					if warm {
						for range 30 {
							text()
						}
						b.ResetTimer()
					}
					for range b.N {
						text()
					}
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/token")
				})
			}
		}
	}
}

// BenchmarkTry walks through texts as the scheduler does: what is not quick is asked for again without a bound. It reports the
// longest time of a try, which is what others of the batch wait, and of a whole mask, which they would wait without it.
func BenchmarkTry(b *testing.B) {
	specs := append(slices.Clone(benchSpecs), benchSpecs[0])
	specs[len(specs)-1].name, specs[len(specs)-1].spec = "ambiguous", Spec{Regex, `(.*a.{20}|.*b.{15}|.*c.{12})*`}
	for _, n := range []int{32000, 128000} {
		v := realistic(n)
		for _, bench := range specs {
			b.Run(fmt.Sprintf("vocab=%d/%s", n, bench.name), func(b *testing.B) {
				c := newTestCompiler(b, v, Config{})
				r := rand.New(rand.NewPCG(3, 4))
				mask := make([]uint64, c.Words())
				var longestTry, longestMask time.Duration
				tries, postponed := 0, 0
				timed := func(longest *time.Duration, f func()) {
					began := time.Now()
					f()
					*longest = max(*longest, time.Since(began))
				}
				for range b.N {
					g := must(c.compile(context.Background(), bench.spec))
					m := g.Matcher()
					if err := m.Mask(mask); err != nil {
						b.Fatal(err)
					}
					for range 100 {
						var allowed []int32
						for id := range int32(n) {
							if mask[id>>6]>>(id&63)&1 == 1 {
								allowed = append(allowed, id)
							}
						}
						id := allowed[r.IntN(len(allowed))]
						tries++
						var ok bool
						var err error
						timed(&longestTry, func() { ok, err = m.Try(id, mask) })
						if !ok {
							postponed++
							timed(&longestMask, func() {
								if err = m.Accept(id); err == nil && !m.Done() {
									err = m.Mask(mask)
								}
							})
						}
						if err != nil {
							b.Fatal(err)
						}
						if m.Done() {
							break
						}
					}
				}
				b.ReportMetric(float64(longestTry.Microseconds()), "longest-try-µs")
				b.ReportMetric(float64(longestMask.Microseconds()), "longest-mask-µs")
				b.ReportMetric(100*float64(postponed)/float64(tries), "postponed-%")
			})
		}
	}
}
