package grammar

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

// boundDigits is how many digits a bound may have, before and after the point together.
const boundDigits = 60

// parseBound reads a JSON number exactly. It fails when the number has too many digits.
func parseBound(v *value) *big.Rat {
	mantissa, exponent, _ := strings.Cut(strings.ToLower(v.text), "e")
	e := 0
	if exponent != "" {
		var err error
		if e, err = strconv.Atoi(exponent); err != nil {
			e = boundDigits + 1
		}
	}
	if v.kind != kindNumber {
		fail(&InvalidError{"must be a number", v.at})
	}
	if len(mantissa)+max(e, -e) > boundDigits {
		fail(&LimitError{"digits in the bound at " + v.at, boundDigits})
	}
	r, ok := new(big.Rat).SetString(v.text)
	if !ok {
		fail(&InvalidError{"must be a number", v.at})
	}
	return r
}

// interval is a set of numbers; nil is without an end.
type interval struct {
	low, high         *big.Rat
	lowOpen, highOpen bool // the bound itself is outside
}

// raise moves the lower bound up to at.
func (v *interval) raise(at *big.Rat, open bool) {
	if v.low == nil || at.Cmp(v.low) > 0 {
		v.low, v.lowOpen = at, open
	} else if at.Cmp(v.low) == 0 {
		v.lowOpen = v.lowOpen || open
	}
}

// lower moves the upper bound down to at.
func (v *interval) lower(at *big.Rat, open bool) {
	if v.high == nil || at.Cmp(v.high) < 0 {
		v.high, v.highOpen = at, open
	} else if at.Cmp(v.high) == 0 {
		v.highOpen = v.highOpen || open
	}
}

// whole narrows the interval to whole numbers at its ends.
func (v *interval) whole() {
	if v.low != nil {
		n, rest := new(big.Int).DivMod(v.low.Num(), v.low.Denom(), new(big.Int)) // rounds down
		if rest.Sign() != 0 || v.lowOpen {
			n.Add(n, big.NewInt(1))
		}
		v.low, v.lowOpen = new(big.Rat).SetInt(n), false
	}
	if v.high != nil {
		n, rest := new(big.Int).DivMod(v.high.Num(), v.high.Denom(), new(big.Int))
		if rest.Sign() == 0 && v.highOpen {
			n.Sub(n, big.NewInt(1))
		}
		v.high, v.highOpen = new(big.Rat).SetInt(n), false
	}
}

// limit is a bound of a magnitude in decimal digits.
type limit struct {
	whole, fraction string // whole has no leading zero but for "0"
	open            bool
}

func newLimit(r *big.Rat, open bool) limit {
	// A bound has finitely many decimals, fewer than boundDigits.
	whole, fraction, _ := strings.Cut(new(big.Rat).Abs(r).FloatString(boundDigits), ".")
	return limit{whole, strings.TrimRight(fraction, "0"), open}
}

// between adds the decimal numbers of an interval, without exponents: whole ones only, or with up to fractionDigits
// digits after the point, or as many as a bound has.
func (b *builder) between(from int32, v interval, whole bool, to int32) {
	if whole {
		v.whole()
	}
	zero := new(big.Rat)
	if v.low == nil || v.low.Sign() < 0 {
		negative := b.node()
		b.edge(from, '-', '-', negative)
		low, high := limit{whole: "0"}, beyond(v.low)
		if whole {
			low.whole = "1" // there is no -0
		}
		if v.low != nil {
			high = newLimit(v.low, v.lowOpen)
		}
		if v.high != nil && v.high.Sign() < 0 {
			low = newLimit(v.high, v.highOpen)
		} else if v.high != nil && v.high.Sign() == 0 && v.highOpen {
			low.open = true
		}
		b.magnitude(negative, low, high, whole, to)
	}
	if v.high == nil || v.high.Cmp(zero) >= 0 {
		low, high := limit{whole: "0"}, beyond(v.high)
		if v.low != nil && v.low.Sign() >= 0 {
			low = newLimit(v.low, v.lowOpen)
		}
		if v.high != nil {
			high = newLimit(v.high, v.highOpen)
		}
		if v.high == nil {
			high = beyond(v.low)
		}
		b.magnitude(from, low, high, whole, to)
	}
}

// beyond is the bound where there is none: some digits more than the other bound has.
func beyond(other *big.Rat) limit {
	n := wholeDigits
	if other != nil {
		n = max(n, len(newLimit(other, false).whole)+1)
	}
	return limit{whole: strings.Repeat("9", n), fraction: strings.Repeat("9", fractionDigits)}
}

const fractionDigits = 17

// span is a place in a number: after so many digits of the whole part (of which there are n) or of the fraction; whether
// what came is the beginning of the lower bound, and of the upper one.
type span struct {
	n, at     int
	fraction  bool
	low, high bool
}

// magnitude adds the decimal numbers in [low, high].
func (b *builder) magnitude(from int32, low, high limit, whole bool, to int32) {
	nodes := map[span]int32{}
	var visit func(s span) int32
	add := func(at int32, s span) {
		if s.at == s.n || s.fraction {
			if !s.fraction || s.at > 0 {
				b.endNumber(at, s, low, high, to)
			}
			if !s.fraction && !whole {
				b.edge(at, '.', '.', visit(span{fraction: true, low: s.low, high: s.high}))
			}
			if !s.fraction || s.at >= max(len(low.fraction), len(high.fraction), fractionDigits) {
				return
			}
		}
		least, most := byte('0'), byte('9')
		if !s.fraction && s.at == 0 && s.n > 1 {
			least = '1'
		}
		lowest, highest := least, most
		if s.low {
			lowest = low.digit(s)
		}
		if s.high {
			highest = high.digit(s)
		}
		for d := max(least, lowest); d <= min(most, highest); d++ {
			next := s
			next.at++
			next.low = s.low && d == lowest
			next.high = s.high && d == highest
			b.edge(at, d, d, visit(next))
		}
	}
	visit = func(s span) int32 {
		if node, ok := nodes[s]; ok {
			return node
		}
		node := b.node()
		nodes[s] = node
		add(node, s)
		return node
	}
	for n := len(low.whole); n <= len(high.whole); n++ {
		b.empty(from, visit(span{n: n, low: n == len(low.whole), high: n == len(high.whole)}))
	}
}

// digit is the bound's digit at a place.
func (l limit) digit(s span) byte {
	if !s.fraction {
		return l.whole[s.at]
	}
	if s.at < len(l.fraction) {
		return l.fraction[s.at]
	}
	return '0'
}

// rest reports whether the bound has digits other than 0 from a place on.
func (l limit) rest(s span) bool {
	at := 0
	if s.fraction {
		at = s.at
	}
	return at < len(l.fraction) // it has no zeros at its end
}

// endNumber lets the number end at a place where its whole part is complete, if it is between the bounds then.
func (b *builder) endNumber(at int32, s span, low, high limit, to int32) {
	if s.low && (low.rest(s) || low.open) || s.high && high.open && !high.rest(s) {
		return
	}
	b.empty(at, to)
}

func (v interval) String() string {
	text := func(r *big.Rat) string {
		if r == nil {
			return "none"
		}
		return r.RatString()
	}
	return fmt.Sprintf("%s to %s", text(v.low), text(v.high))
}
