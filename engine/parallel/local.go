package parallel

// Local gives the worlds of all ranks of one, by rank, inside this process. The caller closes each of them.
func Local(tpSize, ppSize int) ([]*World, error) {
	if _, err := At(0, tpSize, ppSize); err != nil {
		return nil, err
	}
	worlds := make([]*World, tpSize*ppSize)
	for i := range worlds {
		p, err := At(i, tpSize, ppSize)
		if err != nil {
			return nil, err
		}
		worlds[i] = newWorld(p, len(worlds))
	}
	for _, a := range worlds {
		for _, b := range worlds {
			if a != b {
				a.wires = append(a.wires, &localWire{from: a.place.Rank, to: b})
			}
		}
	}
	for c := control; c < channels; c++ {
		rings := map[ringKey]*ring{}
		for _, a := range worlds {
			for _, b := range worlds {
				rings[ringKey{c, a.place.Rank, b.place.Rank}] = newHeapRing(c.ringBytes())
			}
		}
		for _, w := range worlds {
			w.connectRings(c, 0, len(worlds), rings)
		}
	}
	for _, w := range worlds {
		w.ready()
	}
	return worlds, nil
}

// connectRings makes the lines of a channel to the ranks [from, to) over rings.
func (w *World) connectRings(c channel, from, to int, rings map[ringKey]*ring) {
	own := w.place.Rank
	for peer := from; peer < to; peer++ {
		if peer == own || !c.carries(w.place, w.place.other(peer)) {
			continue
		}
		w.lines[c][peer] = &line{
			peer: peer,
			out:  &end{ring: rings[ringKey{c, own, peer}], peer: peer, world: w},
			in:   &end{ring: rings[ringKey{c, peer, own}], peer: peer, world: w},
		}
	}
}

// localWire ends another world of this process.
type localWire struct {
	from int
	to   *World
}

func (l *localWire) tell(cause *PeerError) {
	if cause == nil {
		cause = &PeerError{Rank: l.from, Err: ErrLeft}
	}
	l.to.end(cause, false)
}
