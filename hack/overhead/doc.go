// Overhead measures what it costs an engine to tell of itself: one with all metrics on, scraped, and tracing at level 0,
// against ones without.
//
//	go run ./hack/overhead
//
// Three engines live at once: off, off again and on. In a cycle each gets the same requests, a short round each, in an order
// that changes from cycle to cycle, so that what happens to the machine for longer than a round happens to all of them. A
// round gives its length, of which throughput is made, and the processor time that the engine used in it, which a busy machine
// blurs less. The on engine is scraped during its rounds, as often as its own time in rounds asks for. After some cycles
// all three are replaced, since where a process lies in memory makes two equal ones differ: that is a generation.
//
// The ratio of a measure is off ÷ on, so 0.99 is a cost of 1 %: the mean of the logarithms over cycles and generations, without
// the outermost cycles of each generation. Its bounds are those of a bootstrap over generations, and over the cycles of each.
// The ratio of the two off engines is told beside it: how far that is from 1, and how wide, is the noise.
//
// After some generations, and then after ever more, the bounds are looked at: when they lie on one side of 0.99 it is decided
// and the program ends, with status 0 or 1. When the last look decides nothing, it says undecided and ends with status 2.
//
// How often that is wrong: a bound leaves 0.5 % outside, one-sided, and there are four looks (after 24, 36, 54 and 72
// generations) at two measures, either of which may decide. A bootstrap over so few generations is narrow: where processes differ
// more than their rounds do, 0.5 % are 0.9 % at the first look and 0.6 % at the last. That adds up to 6 of 100 runs at most, for a
// cost that lies right at the bound. Farther from the bound it is rarer. An earlier first look errs more often.
//
// Rounds are short, a tenth of a second, since a processor that is shared with others changes its speed within seconds: what is
// measured closer together has more of that in common. Answers are long against prompts, so that steps are small and many,
// which is where telling of each costs most.
//
// Run it in the root of the repository, with nothing else running.
package main
