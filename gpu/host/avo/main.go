// Command avo writes the assembly of gpu/host for amd64 and the Go declarations beside it. Run it by go generate there.
//
// Each kernel exists twice: with 16 lanes in one register (AVX-512) and with 16 lanes in two (AVX2). Both add in the
// same order, so their results are the same bits.
package main

import . "github.com/mmcloughlin/avo/build" //nolint:revive // avo's programs read as assembly this way

func main() {
	ConstraintExpr("amd64")
	for _, set := range []isa{avx512, avx2} {
		set.tiles()
		set.dots()
		set.mix()
		set.expSum()
		set.siluMul()
	}
	Generate()
}
