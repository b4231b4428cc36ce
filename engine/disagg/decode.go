package disagg

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/internal/peer"
)

// Decode is the decode rank's end: it fetches prompts' KV from prefill ranks.
type Decode struct {
	cfg         Config
	shard       shard
	pages       Pages
	direct      Direct // nil: pages are copied
	incarnation string
	client      *http.Client
	dialer      net.Dialer
	wg          sync.WaitGroup
	stripes     stripes

	leaving context.Context // of the visits of decode ranks that come only to say that they won't come
	stay    context.CancelFunc
	visits  chan struct{} // has one for each room whose peers are told so; capacity cfg.MaxFarewells

	mu     sync.Mutex
	closed bool
	live   map[*Receiver]struct{} // opened and not settled
}

// NewDecode makes the decode rank's end. Close ends it.
func NewDecode(cfg Config, layout Layout, pages Pages) (*Decode, error) {
	cfg = cfg.withDefaults()
	shard, err := newShard(layout, cfg.Place)
	if err != nil {
		return nil, err
	}
	d := &Decode{
		cfg: cfg, shard: shard, pages: pages, direct: directOf(pages, layout), incarnation: peer.Nonce(),
		client: &http.Client{
			Timeout: cfg.RouteTimeout,
			// The host comes with the request; it must not send this rank elsewhere.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
			Transport:     &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: cfg.IdleTimeout},
		},
		dialer: net.Dialer{Timeout: cfg.HandshakeTimeout, KeepAliveConfig: keepAlive},
		visits: make(chan struct{}, cfg.MaxFarewells),
		live:   map[*Receiver]struct{}{},
	}
	d.leaving, d.stay = context.WithCancel(context.Background())
	return d, nil
}

// Open starts to fetch the KV of a prompt of promptTokens tokens. The room's prefill rank may open the room before or
// after.
func (d *Decode) Open(b request.Bootstrap, promptTokens int) (*Receiver, error) {
	switch {
	case promptTokens < 1:
		return nil, fmt.Errorf("open room %d: the prompt has %d tokens, want at least 1", b.Room, promptTokens)
	case b.Host == "":
		return nil, fmt.Errorf("open room %d: bootstrap_host is empty: the router must name the prefill engine", b.Room)
	case b.Port < 1 || b.Port > 65535:
		return nil, fmt.Errorf("open room %d: bootstrap_port is %d, want 1 to 65535", b.Room, b.Port)
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), d.cfg.BootstrapTimeout, errBootstrapTimeout)
	r := &Receiver{d: d, promptTokens: promptTokens, ctx: ctx, cancel: cancel, born: time.Now(), here: make(chan struct{})}
	r.group = newGroup(&d.cfg, b.Room, WaitingPages, func(*Error) {})
	r.server, r.asking = net.JoinHostPort(b.Host, strconv.Itoa(b.Port)), true
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		cancel()
		return nil, fmt.Errorf("open room %d: the decode rank is closed", b.Room)
	}
	d.live[r] = struct{}{}
	d.wg.Add(1)
	go r.run()
	return r, nil
}

// fits reports why this rank can't get its KV from a prefill replica, if so.
func (d *Decode) fits(r replicaRoute) error {
	prefill := world{tp: r.AttnTPSize, pp: r.PPSize}
	if err := prefill.check(d.shard.layout.shape()); err != nil {
		return faultf(ReasonMismatch, "the prefill engine: %v", err)
	}
	return nil
}

func (d *Decode) forget(r *Receiver) {
	d.mu.Lock()
	delete(d.live, r)
	d.mu.Unlock()
}

// Close fails all rooms and waits until they are settled, and a moment for peers that are yet to be told.
func (d *Decode) Close() error {
	d.mu.Lock()
	d.closed = true
	for r := range d.live {
		r.Abort(errors.New("the decode rank is closing"))
	}
	d.mu.Unlock()
	defer time.AfterFunc(farewellTimeout, d.stay).Stop()
	d.wg.Wait()
	d.stay()
	d.client.CloseIdleConnections()
	return nil
}
