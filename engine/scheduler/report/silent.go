package report

import "github.com/sluice-dev/sluice/engine/ledger"

// Silent gives a Reporter that forgets everything.
func Silent() Reporter { return silent{} }

type silent struct{}

func (silent) Started(Constants)                {}
func (silent) Report(Snapshot)                  {}
func (silent) LoopTime(LoopTime)                {}
func (silent) QueueTime(int64, Priority)        {}
func (silent) StageTime(ledger.Stage, int64)    {}
func (silent) KVTransfer(KVTransfer)            {}
func (silent) KVMoved(KVMoved)                  {}
func (silent) KVReleased(ReleaseOutcome, int64) {}
func (silent) BootstrapFailed()                 {}
func (silent) TransferFailed()                  {}
func (silent) PrefillRetried()                  {}
func (silent) Rejected(Rejection)               {}
func (silent) Retracted(int, int, int)          {}
func (silent) RealtimeTokens(int, int, int)     {}
func (silent) PrefillTokens(int, int)           {}
func (silent) Forward(ForwardMode, int64)       {}
func (silent) Estimated(Cost)                   {}
func (silent) Evicted(int, int64)               {}
func (silent) Grammar(Grammar)                  {}
func (silent) GrammarMasks(int64, int64)        {}
func (silent) Violated(ledger.Law)              {}
