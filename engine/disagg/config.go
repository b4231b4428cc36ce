package disagg

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
)

// Pages is the KV memory of one rank. Both methods may be called from any goroutine, for pages that the executor does
// not use at the moment.
type Pages interface {
	// ReadPage copies the KV of one layer of one page to dst, which is [PageBytesPerLayer].
	ReadPage(layer int, page int32, dst []byte)
	// WritePage stores src, [PageBytesPerLayer], as the KV of one layer of one page. It keeps no reference to src.
	WritePage(layer int, page int32, src []byte) error
}

// Direct is what Pages implements besides when this process can address its pages: then they travel without a copy.
type Direct interface {
	// PageBytes is the memory of one layer of one page, [PageBytesPerLayer], or nil when it has to be copied after all.
	PageBytes(layer int, page int32) []byte
}

// directBytes is the smallest page that is worth its own system call on the receiving side.
const directBytes = 32 << 10

// directOf gives pages as Direct, or nil.
func directOf(pages Pages, l Layout) Direct {
	d, ok := pages.(Direct)
	if !ok || l.PageBytesPerLayer < directBytes {
		return nil
	}
	return d
}

// Layout is what both sides must agree on for pages to be exchanged, and how large this rank's pages are.
type Layout struct {
	Layers   int `json:"layers"`             // of the model, > 0, at most maxLayers
	KVHeads  int `json:"kv_heads,omitempty"` // of the model; 0: 1, and then pages are never cut
	PageSize int `json:"page_size"`          // tokens, > 0

	// PageBytesPerLayer is K and V of one layer of one page of this rank together, > 0, at most maxPageBytes: first the keys
	// and then the values, each [PageSize, the rank's KV heads, bytes of a head].
	PageBytesPerLayer int    `json:"page_bytes_per_layer"`
	DType             string `json:"dtype"`
	ModelID           string `json:"model_id"` // the same for the same weights, at most maxModelID bytes

	// WindowLayers has a 1 for each layer of the model whose attention reaches WindowTokens tokens back, the token itself
	// included, and a 0 for each other one; empty: no layer is so.
	WindowLayers string `json:"window_layers,omitempty"`
	WindowTokens int    `json:"window_tokens,omitempty"`
}

const (
	maxLayers    = 1 << 12
	maxHeads     = 1 << 12
	maxPageBytes = 64 << 20
	maxModelID   = 1 << 10
)

// NumPages is the number of pages that tokens take: ceil(tokens / PageSize).
func (l Layout) NumPages(tokens int) int { return (tokens + l.PageSize - 1) / l.PageSize }

// FirstWindowPage is the first page of a prompt that the next token still sees in layers with a window. Of these layers the
// pages [FirstWindowPage, NumPages) travel, of the others all.
func (l Layout) FirstWindowPage(tokens int) int {
	if l.WindowTokens == 0 {
		return 0
	}
	return max(0, tokens-l.WindowTokens+1) / l.PageSize
}

// windowed reports whether a layer of the model has a window.
func (l Layout) windowed(layer int) bool { return l.WindowLayers != "" && l.WindowLayers[layer] == '1' }

// shape is what the ranks share out.
func (l Layout) shape() shape { return shape{layers: l.Layers, heads: max(1, l.KVHeads)} }

func (l Layout) validate() error {
	switch {
	case l.Layers <= 0 || l.Layers > maxLayers:
		return fmt.Errorf("layout: layers is %d, want 1 to %d", l.Layers, maxLayers)
	case l.PageSize <= 0:
		return fmt.Errorf("layout: page_size is %d, want at least 1", l.PageSize)
	case l.PageBytesPerLayer <= 0 || l.PageBytesPerLayer > maxPageBytes:
		return fmt.Errorf("layout: page_bytes_per_layer is %d, want 1 to %d", l.PageBytesPerLayer, maxPageBytes)
	case l.KVHeads < 0 || l.KVHeads > maxHeads:
		return fmt.Errorf("layout: kv_heads is %d, want 0 to %d", l.KVHeads, maxHeads)
	case l.WindowLayers != "" && (len(l.WindowLayers) != l.Layers || strings.Trim(l.WindowLayers, "01") != ""):
		return fmt.Errorf("layout: window_layers is %.64q, want a 0 or 1 for each of %d layers", l.WindowLayers, l.Layers)
	case strings.Contains(l.WindowLayers, "1") != (l.WindowTokens > 0) || l.WindowTokens < 0:
		return fmt.Errorf("layout: window_tokens is %d and window_layers %.64q: want both or none", l.WindowTokens, l.WindowLayers)
	case len(l.ModelID) > maxModelID:
		return fmt.Errorf("layout: model_id has %d bytes, want at most %d", len(l.ModelID), maxModelID)
	case len(l.DType) > 64:
		return fmt.Errorf("layout: dtype has %d bytes, want at most 64", len(l.DType))
	}
	return nil
}

// First is what the prefill rank knows when the prompt is done; the decode rank goes on from it.
type First struct {
	Token        int32   // the first generated token
	Logprob      float32 // of Token
	CachedTokens int     // prompt tokens that the prefill rank found in its radix cache
	Seed         uint64  // the seed that Token was sampled with

	// Logprobs is what was asked about Token, nil when nothing was. Prompt is the same for tokens of the prompt, by position.
	Logprobs *request.TokenLogprobs
	Prompt   []request.TokenLogprobs
}

// TransferStats are the sizes and times of one session, each 0 until known. They are final once the state is terminal.
type TransferStats struct {
	// TotalBytes is the page bytes that were sent (prefill) or that arrived (decode), without framing.
	TotalBytes int64
	// PeerBytes is the same as the peers counted it, who say so with the first token and with its ack; valid once PeerKnown.
	// Done: PeerBytes = TotalBytes. Failed: what arrived is at most what was sent.
	PeerBytes int64
	PeerKnown bool

	// LatencyNanos is the time with pages queued or on their way, plus the wait for the final ack (prefill); from
	// Allocate to the first token (decode).
	LatencyNanos int64
	// BootstrapNanos is the time from Open to the end of the handshake.
	BootstrapNanos int64
	// AllocNanos is the time from the end of the handshake until the decode rank's pages were allocated.
	AllocNanos int64
}

// Config configures one side. The zero value of every field but Listen, Bootstrap and Secret has a default.
type Config struct {
	// Listen is the host:port at which a prefill rank accepts decode ranks; port 0 takes a free one. Prefill only.
	Listen string
	// AdvertiseHost is the address of this rank that decode ranks dial. Empty: the host of Listen, which must then not
	// be a wildcard. Prefill only.
	AdvertiseHost string
	// Bootstrap is the host:port of the bootstrap server at which the prefill rank registers. Prefill only.
	Bootstrap string
	// HTTPPort is the prefill engine's API port, told at registration. Prefill only.
	HTTPPort int

	// Place is where this rank is in its world; zero: alone. The other side's world may be another.
	Place parallel.Place
	// DPSize is the number of replicas behind the bootstrap server and DPRank which of them this is; 0: one. Prefill only.
	DPSize, DPRank int
	// LoadBalance is how the prefill engine spreads requests over replicas, told at registration; empty: round_robin. With
	// FollowRoom a room belongs to replica room mod DPSize; otherwise the bootstrap server has to be told of each room.
	LoadBalance string

	// Secret is shared by the prefill and decode engines of a service. Empty is allowed between loopback addresses only.
	Secret []byte

	BootstrapTimeout time.Duration // Open until both sides are ready to transfer; 300 s
	WaitingTimeout   time.Duration // without a page or the ack that is due; 300 s
	IdleTimeout      time.Duration // without any sign of life of the peer; 30 s
	HandshakeTimeout time.Duration // of one connection, from accept or dial to the proofs; 5 s
	RouteTimeout     time.Duration // decode: asking the bootstrap server, retries included; 3 s

	MaxHandshakes int // prefill: connections that have not proved the secret yet; the oldest gives way, and comes again; 1024
	MaxParked     int // prefill: authenticated decode ranks whose room is not open yet; 1024

	// MaxFarewells is how many aborted rooms' peers are told at the same time that nobody comes, each for at most RouteTimeout +
	// HandshakeTimeout. The peers of further ones are not told and wait for their BootstrapTimeout. Decode only; 64.
	MaxFarewells int

	// Wake is called, from any goroutine, after a session's state has changed. It must not block. Nil: nothing.
	Wake func()
	// Now gives monotonic nanoseconds for TransferStats. Nil: the system's monotonic clock.
	Now func() int64
	// Listener receives events, from any goroutine. It must not block. Nil: nothing.
	Listener func(Event)
}

// withDefaults fills in what is zero.
func (c Config) withDefaults() Config {
	setDefault(&c.BootstrapTimeout, 300*time.Second)
	setDefault(&c.WaitingTimeout, 300*time.Second)
	setDefault(&c.IdleTimeout, 30*time.Second)
	setDefault(&c.HandshakeTimeout, 5*time.Second)
	setDefault(&c.RouteTimeout, 3*time.Second)
	setDefault(&c.MaxHandshakes, 1024)
	setDefault(&c.MaxParked, 1024)
	setDefault(&c.MaxFarewells, 64)
	setDefault(&c.DPSize, 1)
	if c.Place == (parallel.Place{}) {
		c.Place = parallel.Alone()
	}
	if c.LoadBalance == "" {
		c.LoadBalance = "round_robin"
	}
	if c.Wake == nil {
		c.Wake = func() {}
	}
	if c.Listener == nil {
		c.Listener = func(Event) {}
	}
	if c.Now == nil {
		start := time.Now()
		c.Now = func() int64 { return int64(time.Since(start)) }
	}
	return c
}

func setDefault[T time.Duration | int](v *T, d T) {
	if *v <= 0 {
		*v = d
	}
}

// FollowRoom is the LoadBalance with which a room names its replica.
const FollowRoom = "follow_bootstrap_room"

var errNoSecret = errors.New("no secret is configured, which is allowed between loopback addresses only: " +
	"set --disaggregation-secret-file or SLUICE_PD_SECRET on the prefill and decode engines")

// isLoopbackAddr is peer.Loopback for the other end of a connection.
func isLoopbackAddr(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}
