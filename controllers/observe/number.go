package observe

import (
	"math"
	"strconv"

	"github.com/sluice-dev/sluice/controllers/semantics"
)

// scale is the number of fixed steps in one: the wire format of /v1/loads has four decimals.
const scale = 10_000

// maxNumber is the most that is a number, see semantics.IsNumber.
const maxNumber = 1e9

// fixed is a non-negative decimal with four digits, in ten-thousandths. Integers make sums and means independent of
// the order of ranks, so equal loads give equal strings.
type fixed int64

// number gives x in ten-thousandths; false for what is never a number.
func number(x float64) (n fixed, ok bool) {
	if !semantics.IsNumber(x) {
		return 0, false
	}
	return fixed(math.Round(x * scale)), true
}

// text writes n with the given number of decimals, 0 to 4, rounded half up.
func (n fixed) text(decimals int) string {
	step := int64(1)
	for range 4 - decimals {
		step *= 10
	}
	steps := (int64(n) + step/2) / step
	perOne := int64(scale) / step
	whole, part := steps/perOne, steps%perOne
	if decimals == 0 {
		return strconv.FormatInt(whole, 10)
	}
	digits := strconv.FormatInt(part+perOne, 10)[1:] // the leading 1 keeps the zeros
	return strconv.FormatInt(whole, 10) + "." + digits
}

// mean is the mean of count values that sum up to sum, rounded half up; count is at least 1.
func mean(sum fixed, count int) fixed {
	return (sum + fixed(count)/2) / fixed(count)
}
