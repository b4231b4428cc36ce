package rank

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/kvcache"
	"github.com/sluice-dev/sluice/engine/ledger"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/runner"
	"github.com/sluice-dev/sluice/engine/scheduler"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// parts is a rank, wired.
type parts struct {
	info      Info
	runner    *runner.Runner
	peers     peers
	metrics   metricsStore
	tracing   tracing
	scheduler *scheduler.Scheduler
}

// assemble loads the model and wires the rank, one of a world or, with nil, alone. On an error nothing is left open; the
// world stays the caller's.
func assemble(ctx context.Context, cfg Config, world *parallel.World, log *slog.Logger) (_ *parts, err error) {
	began := time.Now()
	p := &parts{}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.runner, err = runner.New(runner.Config{
		ModelDir: cfg.ModelDir, PageSize: cfg.PageSize, MaxTotalTokens: cfg.MaxTotalTokens, WindowRatio: cfg.SWAFullTokensRatio,
		MemFraction: cfg.memFraction(), Threads: cfg.threads(), World: world, DeviceTimer: cfg.Metrics.DeviceTimer,
	}); err != nil {
		return nil, err
	}
	tok, err := tokenizer.Load(cfg.ModelDir)
	if err != nil {
		return nil, fmt.Errorf("load the tokenizer of %s: %w", cfg.ModelDir, err)
	}
	if p.info, err = describe(cfg, p.runner.Info(), tok); err != nil {
		return nil, err
	}
	if p.info.Ranks, err = introduce(ctx, world, cfg.process(), p.info.ModelID); err != nil {
		return nil, err
	}
	clock := ledger.System()
	if p.metrics, err = openMetrics(cfg, p.runner.Info(), clock, log); err != nil {
		return nil, err
	}
	if p.tracing, err = openTracing(cfg, clock, log, p.metrics.spansLost()); err != nil {
		return nil, err
	}
	// Transfers wake a scheduler that is made after them.
	var awake atomic.Pointer[scheduler.Scheduler]
	wake := func() {
		if s := awake.Load(); s != nil {
			s.Wake()
		}
	}
	layout, place := kvLayout(p.runner.Info(), p.info.ModelID), parallel.Alone()
	if world != nil {
		place = world.Place()
	}
	if p.peers, err = openPeers(cfg.Disagg, max(1, cfg.DPSize), cfg.dpRank(), place, layout, p.runner.Pages(), wake, log); err != nil {
		return nil, err
	}
	deps := scheduler.Deps{
		Executor: p.runner,
		Clock:    clock,
		Reporter: logReports(p.metrics.reporter(), log),
		Decoder:  tok,
		Sender:   p.peers.sender(),
		Receiver: p.peers.receiver(),
		Grammars: newGrammars(tok, p.info),
		Tracer:   p.tracing.scheduler(),
		CPU:      cpuNanos,
		Log:      log,
	}
	if cfg.Metrics.DeviceTimer {
		deps.Busy = p.runner.BusyNanos
	}
	if cfg.Metrics.MFU {
		deps.Cost = p.runner.Cost
	}
	decides := schedulerConfig(cfg, p.info, p.runner.Info())
	if world != nil {
		deps.Peers, decides.Stages = world.Peers(), place.PPSize
	}
	if p.scheduler, err = scheduler.New(decides, deps); err != nil {
		return nil, err
	}
	made := p.runner.Info()
	if p.info.Startup, err = slowest(ctx, world, Startup{
		LoadWeightNanos: made.LoadNanos, KVCacheNanos: made.AllocNanos, TotalNanos: time.Since(began).Nanoseconds(),
	}); err != nil {
		return nil, err
	}
	awake.Store(p.scheduler)
	p.scheduler.Wake()
	return p, nil
}

// kvLayout says how a rank's pages lie and what of the model's KV they are.
func kvLayout(made runner.Info, modelID string) disagg.Layout {
	l := disagg.Layout{
		Layers: made.ModelLayers, KVHeads: made.ModelKVHeads, PageSize: made.PageSize, PageBytesPerLayer: made.PageBytesPerLayer,
		DType: made.DType, ModelID: modelID, WindowTokens: made.WindowTokens,
	}
	for _, windowed := range made.ModelWindowed {
		l.WindowLayers += map[bool]string{false: "0", true: "1"}[windowed]
	}
	return l
}

// describe gives the facts of the rank, checking the configuration against the model.
func describe(cfg Config, made runner.Info, tok *tokenizer.Tokenizer) (Info, error) {
	context := made.ContextLength
	if cfg.ContextLength > context {
		return Info{}, fmt.Errorf("context length is %d, but the model's is %d: lower --context-length", cfg.ContextLength, context)
	}
	if cfg.ContextLength > 0 {
		context = cfg.ContextLength
	}
	id, err := modelID(cfg.ModelDir)
	if err != nil {
		return Info{}, err
	}
	ends := append(slices.Clone(made.EOSTokenIDs), tok.EOS()...)
	slices.Sort(ends)
	return Info{
		Rank:                       cfg.Rank,
		PID:                        os.Getpid(),
		ModelID:                    id,
		DType:                      made.DType,
		VocabSize:                  made.VocabSize,
		NumLayers:                  made.ModelLayers,
		EOSTokenIDs:                slices.Compact(ends),
		ContextLength:              context,
		PageSize:                   made.PageSize,
		MaxTotalNumTokens:          made.MaxTotalTokens,
		MaxRunningRequests:         cfg.MaxRunningRequests,
		MaxRunningRequestsUnderSLO: cfg.MaxRunningRequestsUnderSLO,
		WeightBytes:                made.WeightBytes,
		KVBytes:                    made.KVBytes,
	}, nil
}

// schedulerConfig maps a valid configuration and the rank's facts.
func schedulerConfig(cfg Config, info Info, made runner.Info) scheduler.Config {
	role := scheduler.Unified
	switch cfg.Disagg.Mode {
	case ModePrefill:
		role = scheduler.Prefill
	case ModeDecode:
		role = scheduler.Decode
	case ModeUnified:
	}
	policy, _ := scheduler.ParsePolicy(cfg.SchedulePolicy) // Validate refuses
	eviction, _ := kvcache.ParsePolicy(cfg.Cache.EvictionPolicy)
	retraction, _ := scheduler.ParseRetractionPolicy(cfg.RetractionPolicy) // other names
	return scheduler.Config{
		Role:               role,
		PageSize:           info.PageSize,
		CapacityTokens:     info.MaxTotalNumTokens,
		ContextLength:      info.ContextLength,
		VocabSize:          info.VocabSize,
		EOS:                info.EOSTokenIDs,
		MaxRunning:         info.MaxRunningRequests,
		MaxRunningUnderSLO: info.MaxRunningRequestsUnderSLO,
		MaxQueued:          cfg.MaxQueuedRequests,
		ChunkTokens:        max(cfg.ChunkedPrefillSize, 0),
		MaxPrefillTokens:   cfg.MaxPrefillTokens,
		DecodeInterval:     cfg.DecodeLogInterval,

		WindowTokens:         made.WindowTokens,
		WindowCapacityTokens: made.MaxWindowTokens,
		Windowed:             made.Windowed,

		NoCache:  cfg.Cache.Disable,
		Eviction: eviction,

		StreamingSessions:   cfg.EnableStreamingSession,
		SessionTokens:       cfg.MaxSessionTokens,
		SessionTimeoutNanos: int64(cfg.SessionTimeout),

		Policy: policy,
		Priorities: scheduler.Priorities{
			Enabled: cfg.Priority.Enabled, LowFirst: cfg.Priority.LowFirst, Default: cfg.Priority.Default,
			Threshold: cfg.Priority.PreemptionThreshold, NoPreemption: cfg.Priority.DisablePreemption,
			RefuseWhenDisabled: cfg.Priority.AbortWhenDisabled,
		},
		Retraction:       retraction,
		Conservativeness: cfg.ScheduleConservativeness,
		HitWindowNanos:   int64(cfg.CacheHitRateWindow),
		Timeouts: scheduler.Timeouts{
			WaitingNanos: int64(cfg.RequestWaitingTimeout), RunningNanos: int64(cfg.RequestRunningTimeout),
		},
		GrammarTimeoutNanos: int64(cfg.GrammarTimeout),
		Overlap:             !cfg.DisableOverlapSchedule,
		MixedChunk:          cfg.EnableMixedChunk,
		Seed:                cfg.Seed,
		TestRetractSteps:    cfg.TestRetractSteps,
		AssertTimes:         cfg.AssertTimes,
		WeightBytes:         info.WeightBytes,
		KVBytes:             info.KVBytes,
		AvailableBytes:      made.Device.MemoryFreeBytes,
	}
}

// close ends the parts in the order in which they use each other: the scheduler has returned, then the transfers, which
// touch pages, then the device.
func (p *parts) close() error {
	var errs []error
	errs = append(errs, p.peers.close())
	if p.metrics != nil {
		errs = append(errs, p.metrics.close())
	}
	if p.runner != nil {
		errs = append(errs, p.runner.Close())
	}
	errs = append(errs, p.tracing.close())
	return errors.Join(errs...)
}
