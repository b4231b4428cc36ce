package sampling

// before orders tokens: heaviest first, the lowest id among equals.
func (s *Sampler) before(a, b int32) bool {
	wa, wb := s.weights[a], s.weights[b]
	return wa > wb || (wa == wb && a < b)
}

// heapify makes order a heap, so that popping k of n tokens costs n + k*log(n) and not a whole sort.
func (s *Sampler) heapify() {
	for i := len(s.order)/2 - 1; i >= 0; i-- {
		s.sink(i)
	}
}

func (s *Sampler) sink(i int) {
	h := s.order
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && s.before(h[child+1], h[child]) {
			child++
		}
		if !s.before(h[child], h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

// pop removes the first token.
func (s *Sampler) pop() int32 {
	first, last := s.order[0], len(s.order)-1
	s.order[0] = s.order[last]
	s.order = s.order[:last]
	s.sink(0)
	return first
}
