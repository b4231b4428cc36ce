package rank

import "github.com/sluice-dev/sluice/engine/request"

// eventBytes is about the most that an event of the protocol takes. What clients ask for, logprobs above all, decides how
// much there is to say at once; a message over maxMessageBytes would break the connection.
const eventBytes = 8 << 20

// events puts outputs, which keep their order, into lists that take about so many bytes each at most. An output that is longer
// is cut; its pieces joined again, see Join, are the output.
func events(outputs []request.Output, mostBytes int) [][]request.Output {
	var all [][]request.Output
	var open []request.Output
	room := mostBytes
	for _, o := range outputs {
		for _, piece := range pieces(o, mostBytes) {
			n := outputBytes(piece)
			if n > room && len(open) > 0 {
				all, open, room = append(all, open), nil, mostBytes
			}
			open, room = append(open, piece), room-n
		}
	}
	if len(open) > 0 {
		all = append(all, open)
	}
	return all
}

// pieces cuts an output where it would be longer: first between the logprobs of its prompt, then between its tokens, which
// keep their logprobs. The last piece has the finish and the last token.
func pieces(o request.Output, mostBytes int) []request.Output {
	if outputBytes(o) <= mostBytes {
		return []request.Output{o}
	}
	var all []request.Output
	piece := o // of which everything is known but what it holds
	piece.Finish, piece.TokenIDs, piece.Logprobs, piece.PromptLogprobs = nil, nil, nil, nil
	piece.CompletionTokens -= len(o.TokenIDs)
	for len(o.PromptLogprobs) > 0 && outputBytes(o) > mostBytes {
		n := fitting(o.PromptLogprobs, mostBytes)
		piece.PromptLogprobs, o.PromptLogprobs = o.PromptLogprobs[:n], o.PromptLogprobs[n:]
		all = append(all, piece)
	}
	piece.PromptLogprobs = nil
	for len(o.Logprobs) == len(o.TokenIDs) && len(o.TokenIDs) > 1 && outputBytes(o) > mostBytes {
		n := min(fitting(o.Logprobs, mostBytes), len(o.TokenIDs)-1)
		piece.TokenIDs, o.TokenIDs = o.TokenIDs[:n], o.TokenIDs[n:]
		piece.Logprobs, o.Logprobs = o.Logprobs[:n], o.Logprobs[n:]
		piece.CompletionTokens += n
		all = append(all, piece)
	}
	return append(all, o)
}

// fitting is how many positions, at least one, take so many bytes at most.
func fitting(list []request.TokenLogprobs, mostBytes int) int {
	for n := range list {
		if mostBytes -= positionBytes(list[n]); mostBytes < 0 {
			return max(1, n)
		}
	}
	return len(list)
}

// The most that parts of an output take in an event: a number is at most 10 bytes, a field's name and length 6.
const (
	tokenBytes   = 5
	logprobBytes = 16 // a token, its logprob and what is around them
	restBytes    = 256
)

func outputBytes(o request.Output) int {
	n := restBytes + len(o.RID) + tokenBytes*len(o.TokenIDs)
	if o.Finish != nil {
		n += restBytes + len(o.Finish.Message) + len(o.Finish.MatchedStop)
	}
	for _, list := range [][]request.TokenLogprobs{o.Logprobs, o.PromptLogprobs} {
		for _, l := range list {
			n += positionBytes(l)
		}
	}
	return n
}

func positionBytes(l request.TokenLogprobs) int {
	return logprobBytes * (2 + len(l.Top) + len(l.Asked))
}
