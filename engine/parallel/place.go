package parallel

import "fmt"

// maxWorld bounds a world: every rank talks to every other.
const maxWorld = 256

// Place is where a rank is in its world.
type Place struct {
	Rank   int // Rank = PPRank*TPSize + TPRank
	TPRank int // 0 <= TPRank < TPSize
	PPRank int // 0 <= PPRank < PPSize
	TPSize int // tensor-parallel ranks of a stage
	PPSize int // pipeline stages
}

// At gives the place of a rank.
func At(rank, tpSize, ppSize int) (Place, error) {
	if tpSize < 1 || ppSize < 1 || tpSize > maxWorld || ppSize > maxWorld || tpSize*ppSize > maxWorld {
		return Place{}, fmt.Errorf("tensor-parallel size is %d and pipeline-parallel size %d: give 1 or more to --tp-size and --pp-size, %d at most in all",
			tpSize, ppSize, maxWorld)
	}
	if rank < 0 || rank >= tpSize*ppSize {
		return Place{}, fmt.Errorf("rank is %d: want 0 to %d, the world is %d tensor-parallel ranks by %d stages", rank, tpSize*ppSize-1, tpSize, ppSize)
	}
	return Place{Rank: rank, TPRank: rank % tpSize, PPRank: rank / tpSize, TPSize: tpSize, PPSize: ppSize}, nil
}

// Alone is the only rank of a world of one.
func Alone() Place { return Place{TPSize: 1, PPSize: 1} }

// World is the number of ranks.
func (p Place) World() int { return p.TPSize * p.PPSize }

// First reports whether the rank is in the stage that takes tokens.
func (p Place) First() bool { return p.PPRank == 0 }

// Last reports whether the rank is in the stage that gives logits.
func (p Place) Last() bool { return p.PPRank == p.PPSize-1 }

// Sampler is the rank that samples for all: the first of the last stage.
func (p Place) Sampler() int { return (p.PPSize - 1) * p.TPSize }

// Layers gives the layers [from, to) of the rank's stage of a model with total layers. The first stages get one more
// where they can't all have the same.
func (p Place) Layers(total int) (from, to int) {
	each, more := total/p.PPSize, total%p.PPSize
	from = p.PPRank*each + min(p.PPRank, more)
	to = from + each
	if p.PPRank < more {
		to++
	}
	return from, to
}

// other gives the place of another rank of the same world.
func (p Place) other(rank int) Place {
	p.Rank, p.TPRank, p.PPRank = rank, rank%p.TPSize, rank/p.TPSize
	return p
}

// validate refuses a Place that At would not give.
func (p Place) validate() error {
	want, err := At(p.Rank, p.TPSize, p.PPSize)
	if err != nil {
		return err
	}
	if p != want {
		return fmt.Errorf("place is %+v: want %+v", p, want)
	}
	return nil
}
