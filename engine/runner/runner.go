package runner

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/sampling"
	"github.com/sluice-dev/sluice/gpu"
	"github.com/sluice-dev/sluice/gpu/host"
)

// Config says what to run and with how much memory.
type Config struct {
	ModelDir string
	PageSize int // tokens, >= 1

	// MaxTotalTokens is the capacity of the KV pages, rounded down to whole pages. 0 derives it from MemFraction.
	MaxTotalTokens int
	// MemFraction is the part of the device's free memory, found at start, that weights and KV may take together when
	// MaxTotalTokens is 0. 0 means DefaultMemFraction.
	MemFraction float64

	// WindowRatio is the capacity of the pool of sliding-window layers as a part of MaxTotalTokens; 0 means
	// DefaultWindowRatio. Not looked at without such layers.
	WindowRatio float64

	DeviceTimer bool // the device that New makes measures its busy time

	Threads int // of the host device, 0: one per CPU, shared out among the world's ranks of this host; ignored when Device is set

	// Device is where to run; nil makes a host device that the Runner closes. A device that is passed stays the caller's.
	Device gpu.Device

	// World is the ranks that hold the model together; nil: this one holds all of it. It stays the caller's.
	World *parallel.World
}

// DefaultMemFraction leaves room for the API process and for other pods of the machine.
const DefaultMemFraction = 0.5

// DefaultWindowRatio is SGLang's --swa-full-tokens-ratio.
const DefaultWindowRatio = 0.8

// Info is what a Runner knows about itself once it is made. What isn't said to be the model's is this rank's.
type Info struct {
	NumLayers    int // 1 <= NumLayers <= ModelLayers
	FirstLayer   int // of the model
	ModelLayers  int
	KVHeads      int // 1 <= KVHeads <= ModelKVHeads
	FirstKVHead  int // of the model
	ModelKVHeads int
	HeadDim      int

	PageBytesPerLayer int // 2 * PageSize * KVHeads * HeadDim numbers
	PageSize          int // tokens
	MaxTotalTokens    int // capacity, a multiple of PageSize, the same on all ranks

	// WindowTokens is how many tokens a windowed layer of the model looks at, its own included; 0: no layer is windowed.
	WindowTokens    int
	Windowed        []bool // by layer of this rank; nil: no layer of the model is windowed
	ModelWindowed   []bool // by layer of the model; nil: none is windowed
	MaxWindowTokens int    // capacity of the pool of windowed layers, a multiple of PageSize, the same on all ranks; 0: none

	ContextLength int // tokens
	VocabSize     int
	EOSTokenIDs   []int32 // ascending
	WeightBytes   int64
	KVBytes       int64 // of all layers
	DType         string
	Device        gpu.Info // as it was when weights and KV were there

	LoadNanos  int64 // that loading the weights took
	AllocNanos int64 // that allocating the pages took
}

// Runner implements scheduler.Executor.
type Runner struct {
	device    gpu.Device
	ownDevice bool
	world     *parallel.World // nil: a rank alone
	casts     []byte          // what the sampling rank told last
	model     *model.Llama
	info      Info
	costs     costs
	pages     *PageStore
	sampler   sampling.Sampler
	checker   checker
	future    future
	step      step
	logits    []float32 // [rows, vocab], the last slice's of the last step
	history   []int32   // of a Future row, its token included
}

// New loads the model and allocates the pages.
func New(cfg Config) (*Runner, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("runner config: %w", err)
	}
	r := &Runner{device: cfg.Device, world: cfg.World}
	if r.device == nil {
		device, err := host.New(host.Config{Threads: cfg.threads(), Timer: cfg.DeviceTimer})
		if err != nil {
			return nil, fmt.Errorf("start device: %w", err)
		}
		r.device, r.ownDevice = device, true
	}
	if err := r.load(cfg); err != nil {
		r.abort(err)
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (c Config) threads() int {
	if c.Threads != 0 || c.World == nil {
		return c.Threads
	}
	return max(1, runtime.GOMAXPROCS(0)/c.World.HostRanks())
}

func (c Config) validate() error {
	if c.PageSize < 1 || c.PageSize > 1<<16 {
		return fmt.Errorf("page size is %d: want 1 to %d tokens", c.PageSize, 1<<16)
	}
	if c.MaxTotalTokens < 0 || (c.MaxTotalTokens > 0 && c.MaxTotalTokens < c.PageSize) {
		return fmt.Errorf("max total tokens is %d: want 0 (from memory) or at least a page of %d", c.MaxTotalTokens, c.PageSize)
	}
	if !(c.WindowRatio >= 0 && c.WindowRatio <= 1) {
		return fmt.Errorf("ratio of window tokens is %g: want 0 (the default, %g) to 1 for --swa-full-tokens-ratio", c.WindowRatio, DefaultWindowRatio)
	}
	if !(c.MemFraction >= 0 && c.MemFraction <= 1) {
		return fmt.Errorf("memory fraction is %g: want 0 (the default, %g) to 1", c.MemFraction, DefaultMemFraction)
	}
	return nil
}

func (r *Runner) load(cfg Config) error {
	// Memory is measured before any rank loads its weights.
	freeBytes := r.freeBytes()
	if err := r.compare(cfg); err != nil {
		return err
	}
	began := time.Now()
	m, err := model.Load(cfg.ModelDir, r.device, r.ranks())
	if err != nil {
		return err
	}
	loaded := time.Since(began)
	r.model = m
	c := m.Config()
	fromLayer, toLayer := m.Shard().Layers()
	fromHead, toHead := m.Shard().KVHeads()
	r.info = Info{
		NumLayers: toLayer - fromLayer, FirstLayer: fromLayer, ModelLayers: c.NumLayers,
		KVHeads: toHead - fromHead, FirstKVHead: fromHead, ModelKVHeads: c.NumKVHeads, HeadDim: c.HeadDim,
		PageBytesPerLayer: 4 * 2 * cfg.PageSize * (toHead - fromHead) * c.HeadDim,
		PageSize:          cfg.PageSize,
		ContextLength:     c.ContextLength,
		VocabSize:         c.VocabSize,
		EOSTokenIDs:       c.EOSTokenIDs,
		WeightBytes:       m.WeightBytes(),
		DType:             "float32",
		LoadNanos:         loaded.Nanoseconds(),
	}
	if c.Windowed != nil {
		r.info.WindowTokens, r.info.Windowed, r.info.ModelWindowed = c.SlidingWindow, c.Windowed[fromLayer:toLayer], c.Windowed
	}
	pages, err := cfg.capacity(r.info, freeBytes)
	if err != nil {
		return err
	}
	if pages, err = r.fewest(pages); err != nil {
		return err
	}
	r.info.MaxTotalTokens, r.info.MaxWindowTokens = pages.Full*cfg.PageSize, pages.Window*cfg.PageSize
	r.info.KVBytes = r.info.bytes(pages)
	r.costs = newCosts(m, r.info)
	began = time.Now()
	if r.pages, err = newPageStore(r.device, r.info, pages); err != nil {
		return err
	}
	r.info.AllocNanos = time.Since(began).Nanoseconds()
	r.info.Device = r.device.Info()
	return nil
}

// Info gives the facts of model and memory.
func (r *Runner) Info() Info { return r.info }

// BusyNanos is how long the device has computed; see gpu.Device.
func (r *Runner) BusyNanos() int64 { return r.device.BusyNanos() }

// Pages gives the KV pages for transfers.
func (r *Runner) Pages() *PageStore { return r.pages }

// Close frees the device if New made it. No call may follow or be under way, transfers of pages included.
func (r *Runner) Close() error {
	if !r.ownDevice {
		return nil
	}
	return r.device.Close()
}
