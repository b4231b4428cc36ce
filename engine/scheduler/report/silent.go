package report

import "github.com/sluice-dev/sluice/engine/ledger"

// Silent is a Reporter that forgets everything.
type Silent struct{}

var _ Reporter = Silent{}

func (Silent) Started(Constants)                {}
func (Silent) Report(Snapshot)                  {}
func (Silent) LoopTime(LoopTime)                {}
func (Silent) QueueTime(int64, Priority)        {}
func (Silent) StageTime(ledger.Stage, int64)    {}
func (Silent) KVTransfer(KVTransfer)            {}
func (Silent) KVReleased(ReleaseOutcome, int64) {}
func (Silent) BootstrapFailed()                 {}
func (Silent) TransferFailed()                  {}
func (Silent) PrefillRetried()                  {}
func (Silent) Rejected(Rejection)               {}
func (Silent) Retracted(int, int, int)          {}
func (Silent) RealtimeTokens(int, int, int)     {}
func (Silent) PrefillTokens(int, int)           {}
func (Silent) Forward(ForwardMode, int64)       {}
func (Silent) Estimated(Cost)                   {}
func (Silent) Evicted(int, int64)               {}
func (Silent) Grammar(Grammar)                  {}
func (Silent) GrammarMasks(int64, int64)        {}
func (Silent) Violated(ledger.Law)              {}
