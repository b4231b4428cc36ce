package scheduler

import "github.com/sluice-dev/sluice/engine/scheduler/report"

// routing is what is told of routing keys.
type routing struct {
	unique       int // of running requests
	running, all report.RoutingKeyCounts
}

// keyCount is the requests of one routing key. 1 <= running + waiting.
type keyCount struct{ running, waiting int }

// countRoutingKeys counts the requests of each routing key, if every running request has one; else what was counted before
// stays.
func (s *Scheduler) countRoutingKeys() {
	for _, q := range s.in[stateRunning] {
		if q.req.RoutingKey == "" {
			return
		}
	}
	if s.scratch.keys == nil {
		s.scratch.keys = map[string]keyCount{}
	}
	keys := s.scratch.keys
	clear(keys)
	for _, q := range s.in[stateRunning] {
		n := keys[q.req.RoutingKey]
		n.running++
		keys[q.req.RoutingKey] = n
	}
	for _, q := range s.in[stateWaiting] {
		if q.req.RoutingKey != "" {
			n := keys[q.req.RoutingKey]
			n.waiting++
			keys[q.req.RoutingKey] = n
		}
	}
	var r routing
	for _, n := range keys {
		if n.running > 0 {
			r.unique++
			r.running.Add(n.running)
		}
		r.all.Add(n.running + n.waiting)
	}
	s.steps.routing = r
}
