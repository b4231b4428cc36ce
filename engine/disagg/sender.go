package disagg

import "fmt"

// Sender is the prefill rank's side of one room: deliveries to the decode ranks that want some of this rank's layers and
// KV heads. Its methods never block and may be called from any goroutine.
type Sender struct {
	group
	p            *Prefill
	promptTokens int

	// Guarded by group.mu.
	decode     world       // of the decode engine; zero until its first rank has come
	deliveries []*delivery // the first one is there from the start; the others once decode is known
	queued     *grid       // what Send got
	finished   bool
}

// meet brings the room and a decode rank together. The caller holds Prefill.mu.
func (s *Sender) meet(a *arrival) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || s.state.Terminal() {
		return overFault(s.room, s.failed)
	}
	if a.fault != nil {
		s.failLocked(a.fault)
		return a.fault
	}
	d, err := s.deliveryLocked(a.join)
	if err != nil {
		s.failLocked(err)
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.link != nil || d.cause != nil {
		return faultf(ReasonProtocol, "room %d has its decode rank already", s.room)
	}
	d.attachLocked(a.link)
	a.delivery.Store(d)
	if a.join.PromptTokens != s.promptTokens {
		d.failLocked(faultf(ReasonMismatch, "prompt_tokens differs: prefill has %d, decode has %d", s.promptTokens, a.join.PromptTokens))
	}
	d.poke()
	return nil
}

// deliveryLocked finds what a decode rank comes for; the first one says how many there are.
func (s *Sender) deliveryLocked(j join) (*delivery, error) {
	decode := world{tp: j.TPSize, pp: j.PPSize}
	if s.decode == (world{}) {
		list := outgoing(s.p.shard.layout.shape(), s.p.shard.world, decode, s.p.shard.at)
		s.decode, s.whole = decode, true
		s.deliveries[0].assign(list[0])
		for _, o := range list[1:] {
			s.addLocked().assign(o)
		}
	}
	if s.decode != decode {
		return nil, faultf(ReasonMismatch, "the decode ranks of room %d differ: one is of %d tensor-parallel ranks by %d stages, another of %d by %d",
			s.room, s.decode.tp, s.decode.pp, decode.tp, decode.pp)
	}
	for _, d := range s.deliveries {
		if d.peerRank == (coordinate{tp: j.TPRank, pp: j.PPRank}) {
			return d, nil
		}
	}
	return nil, faultf(ReasonProtocol, "decode rank tp %d pp %d has nothing to get from prefill rank %v", j.TPRank, j.PPRank, s.p.shard.at)
}

// addLocked makes one more delivery and starts it.
func (s *Sender) addLocked() *delivery {
	d := &delivery{session: newSession(s.sessionConfig(), s.room), s: s, p: s.p}
	s.deliveries, s.sessions = append(s.deliveries, d), append(s.sessions, &d.session)
	s.p.wg.Add(1)
	go d.run()
	return d
}

// links gives the connections of the room.
func (s *Sender) links() []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []*link
	for _, d := range s.deliveries {
		d.mu.Lock()
		if d.link != nil {
			list = append(list, d.link)
		}
		d.mu.Unlock()
	}
	return list
}

// known reports whether a decode rank has come.
func (s *Sender) known(c coordinate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.deliveries {
		if s.decode != (world{}) && d.peerRank == c && d.peerName() != "" {
			return true
		}
	}
	return false
}

// Send queues page `ordinal` of the sequence for layer, which lies in `page` of this rank's memory. Layers are this rank's
// own, from 0. It may be called from Ready on, exactly once for each layer and ordinal, when the executor has written
// everything that the prompt puts there. Of a layer with a window the pages before FirstWindowPage may be left out; they
// are not sent. A wrong call fails the hand-over.
func (s *Sender) Send(layer, ordinal int, page int32) {
	s.mu.Lock()
	woke := s.sendLocked(s.p.shard.holds.layers.from+layer, ordinal, page)
	s.mu.Unlock()
	if woke {
		s.cfg.Wake()
	}
}

// sendLocked is Send with a layer of the model.
func (s *Sender) sendLocked(layer, ordinal int, page int32) (woke bool) {
	switch {
	case s.failed != nil || s.state.Terminal():
		return false
	case s.state != Ready && s.state != Sending:
		s.failLocked(faultf(ReasonLocal, "Send in state %v: the decode rank's pages are not there yet", s.state))
		return false
	case s.finished:
		s.failLocked(faultf(ReasonLocal, "Send of page %d of layer %d after Finish", ordinal, layer))
		return false
	}
	l := &s.p.shard.layout
	if layer >= 0 && layer < l.Layers && l.windowed(layer) && ordinal >= 0 && ordinal < l.FirstWindowPage(s.promptTokens) {
		return false
	}
	if err := s.queued.add(layer, ordinal); err != nil {
		s.failLocked(faultf(ReasonLocal, "Send: %v", err))
		return false
	}
	for _, d := range s.deliveries {
		d.send(layer, ordinal, page)
	}
	return s.moveLocked(Sending)
}

// Finish says that all pages were sent and what the first token is. The hand-over is Done when every decode rank has
// acknowledged everything.
func (s *Sender) Finish(first First) {
	s.mu.Lock()
	woke := s.finishLocked(first)
	s.mu.Unlock()
	if woke {
		s.cfg.Wake()
	}
}

func (s *Sender) finishLocked(first First) (woke bool) {
	switch {
	case s.failed != nil || s.state.Terminal() || s.finished:
		return false
	case s.state != Ready && s.state != Sending:
		s.failLocked(faultf(ReasonLocal, "Finish in state %v: the decode rank's pages are not there yet", s.state))
		return false
	}
	err := s.queued.complete()
	var payload []byte
	if err == nil {
		payload, err = encodeFirst(first)
	}
	if err != nil {
		s.failLocked(&fault{reason: ReasonLocal, err: fmt.Errorf("Finish: %w", err)})
		return false
	}
	s.finished = true
	for _, d := range s.deliveries {
		d.finish(payload)
	}
	return s.moveLocked(Sending)
}
