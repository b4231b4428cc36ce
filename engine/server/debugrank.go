package server

import (
	"context"
	"time"
)

// rankPatience is how long /debug/requests waits for what the rank says of the sequences that live. It answers between two steps.
const rankPatience = time.Second

// askRank adds to views of sequences that live how far they are at the rank. What the rank does not say in time is left out: it may
// be what somebody wants to find out.
func (s *Server) askRank(ctx context.Context, views []requestView) {
	var rids []string
	for i := range views {
		if views[i].InFlight {
			rids = append(rids, views[i].RID)
		}
	}
	e := s.current.Load()
	if len(rids) == 0 || e == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, rankPatience)
	defer cancel()
	found, err := e.rank.Timelines(ctx, rids)
	for i := range views {
		v := &views[i]
		if !v.InFlight {
			continue
		}
		if r := found[v.RID]; r != nil {
			v.Rank, v.QueueNanos = viewTimeline(r), &r.QueueNanos
		} else if err != nil {
			v.RankUnknown = clip(err.Error())
		}
	}
}
