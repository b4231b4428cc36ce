package rank

import (
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/rank/rankpb"
)

func timelineToWire(r *ledger.Record) *rankpb.Timeline {
	if r == nil {
		return nil
	}
	w := &rankpb.Timeline{
		Form:           r.Form.String(),
		Stage:          r.Stage.String(),
		StartWallNanos: r.StartWallNanos,
		Nanos:          r.Nanos,
		Visits:         each(r.Visits, visitToWire),
		Folded:         int64(r.Folded),
		Spent:          each(r.Spent, spentToWire),
		QueueNanos:     r.QueueNanos,
		FirstWaitNanos: r.FirstWaitNanos,
		PrefillEnd:     r.PrefillEnd,
		PeerMet:        r.PeerMet,
	}
	if t := r.Transfer; t != nil {
		w.Transfer = &rankpb.Transfer{OwnBytes: t.OwnBytes, PeerBytes: t.PeerBytes, Nanos: t.Nanos}
	}
	return w
}

// timelineFromWire gives stages that this program does not know as StageNone, which a check of the record finds.
func timelineFromWire(w *rankpb.Timeline) *ledger.Record {
	if w == nil {
		return nil
	}
	form, known := ledger.FormNamed(w.GetForm())
	stage := stageFromWire(w.GetStage())
	if !known {
		stage = ledger.StageNone
	}
	r := &ledger.Record{
		Form:           form,
		Stage:          stage,
		StartWallNanos: w.GetStartWallNanos(),
		Nanos:          w.GetNanos(),
		Visits:         each(w.GetVisits(), visitFromWire),
		Folded:         int(w.GetFolded()),
		Spent:          each(w.GetSpent(), spentFromWire),
		QueueNanos:     w.GetQueueNanos(),
		FirstWaitNanos: w.FirstWaitNanos,
		PrefillEnd:     w.PrefillEnd,
		PeerMet:        w.PeerMet,
	}
	if t := w.GetTransfer(); t != nil {
		r.Transfer = &ledger.Transfer{OwnBytes: t.GetOwnBytes(), PeerBytes: t.PeerBytes, Nanos: t.GetNanos()}
	}
	return r
}

func stageFromWire(name string) ledger.Stage {
	s, _ := ledger.StageNamed(name)
	return s
}

func visitToWire(v ledger.Visit) *rankpb.Visit {
	return &rankpb.Visit{Stage: v.Stage.String(), Start: v.Start, Nanos: v.Nanos}
}

func visitFromWire(w *rankpb.Visit) ledger.Visit {
	return ledger.Visit{Stage: stageFromWire(w.GetStage()), Start: w.GetStart(), Nanos: w.GetNanos()}
}

func spentToWire(s ledger.Spent) *rankpb.Spent {
	return &rankpb.Spent{Stage: s.Stage.String(), Count: int64(s.Count), Nanos: s.Nanos}
}

func spentFromWire(w *rankpb.Spent) ledger.Spent {
	return ledger.Spent{Stage: stageFromWire(w.GetStage()), Count: int(w.GetCount()), Nanos: w.GetNanos()}
}
