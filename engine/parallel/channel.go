package parallel

// channel is a kind of traffic with an order of its own: two goroutines of a rank may each use another one.
type channel uint8

const (
	// notices tell that a rank lives, leaves or why it ends. Always a socket, between all ranks.
	notices channel = iota
	// control is Peers: between all ranks.
	control
	// data is Group and Pipe: between the ranks of a stage and along the stages.
	data
	// tokens is Cast: from the sampling rank to all.
	tokens

	channels
)

func (c channel) String() string {
	return [...]string{"notices", "control", "data", "tokens"}[c]
}

// carries reports whether two ranks of a world use a channel between each other.
func (c channel) carries(a, b Place) bool {
	switch c {
	case data:
		sameStage := a.PPRank == b.PPRank
		nextStage := a.TPRank == b.TPRank && (a.PPRank == b.PPRank+1 || b.PPRank == a.PPRank+1)
		return sameStage || nextStage
	case tokens:
		return a.Rank == a.Sampler() || b.Rank == b.Sampler()
	default:
		return true
	}
}

// ringBytes is how much of a channel may be under way to one rank. A power of two, and at least 4 chunks: see swap.
func (c channel) ringBytes() int {
	if c == data {
		return 4 * chunkBytes
	}
	return 2 * chunkBytes
}

// chunkBytes is how much is sent to every peer before what they sent is looked at. On the control channel chunks are
// half as long.
const chunkBytes = 32 << 10

func (c channel) chunk() int { return c.ringBytes() / 4 }
