package disagg

import (
	"bytes"
	"context"
	"crypto/hmac"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/internal/peer"
)

// registration is the body of PUT /route: where a prefill rank listens and what it is.
type registration struct {
	AttnTPSize        int    `json:"attn_tp_size"`
	AttnTPRank        int    `json:"attn_tp_rank"`
	AttnCPSize        int    `json:"attn_cp_size"`
	AttnCPRank        int    `json:"attn_cp_rank"`
	AttnDPSize        int    `json:"attn_dp_size"`
	AttnDPRank        int    `json:"attn_dp_rank"`
	PPSize            int    `json:"pp_size"`
	PPRank            int    `json:"pp_rank"`
	SystemDPSize      int    `json:"system_dp_size"`
	SystemDPRank      int    `json:"system_dp_rank"`
	RankIP            string `json:"rank_ip"`
	RankPort          int    `json:"rank_port"`
	PageSize          int    `json:"page_size"`
	KVCacheDType      string `json:"kv_cache_dtype"`
	LoadBalanceMethod string `json:"load_balance_method"`
	PrefillHTTPPort   int    `json:"prefill_http_port"`

	// Incarnation differs between two runs of a rank; StartedWallNanos orders them: an older run cannot take the place
	// of a newer one.
	Incarnation      string `json:"incarnation"`
	StartedWallNanos int64  `json:"started_wall_nanos"`
}

// rankKey is which rank of the prefill engine.
type rankKey struct{ dp, cp, tp, pp int }

// key is the rank that registers. With one system-wide DP replica per attention group the attention DP rank decides.
func (r registration) key() rankKey {
	dp := r.AttnDPRank
	if r.SystemDPSize > 1 {
		dp = r.SystemDPRank
	}
	return rankKey{dp: dp, cp: r.AttnCPRank, tp: r.AttnTPRank, pp: r.PPRank}
}

const maxRanks = 4096 // of one engine; bounds each size and the table

func (r registration) validate() error {
	for _, s := range []struct {
		name       string
		rank, size int
	}{
		{"attn_tp", r.AttnTPRank, r.AttnTPSize},
		{"attn_cp", r.AttnCPRank, r.AttnCPSize},
		{"attn_dp", r.AttnDPRank, r.AttnDPSize},
		{"pp", r.PPRank, r.PPSize},
		{"system_dp", r.SystemDPRank, r.SystemDPSize},
	} {
		if s.size < 1 || s.size > maxRanks {
			return fmt.Errorf("%s_size is %d, want 1 to %d", s.name, s.size, maxRanks)
		}
		if s.rank < 0 || s.rank >= s.size {
			return fmt.Errorf("%s_rank is %d, want 0 to %s_size-1 = %d", s.name, s.rank, s.name, s.size-1)
		}
	}
	if r.RankIP == "" || len(r.RankIP) > 255 {
		return fmt.Errorf("rank_ip is %.64q, want an address that decode ranks can dial", r.RankIP)
	}
	if r.RankPort < 1 || r.RankPort > 65535 {
		return fmt.Errorf("rank_port is %d, want 1 to 65535", r.RankPort)
	}
	if r.PageSize < 1 {
		return fmt.Errorf("page_size is %d, want at least 1", r.PageSize)
	}
	if len(r.Incarnation) > 64 || len(r.KVCacheDType) > 64 || len(r.LoadBalanceMethod) > 64 {
		return errors.New("incarnation, kv_cache_dtype and load_balance_method may have 64 bytes at most")
	}
	return nil
}

// rankRoute is the answer of GET /route for one rank.
type rankRoute struct {
	RankIP      string `json:"rank_ip"`
	RankPort    int    `json:"rank_port"`
	Incarnation string `json:"incarnation"`
}

// replicaRoute is the answer of GET /ranks: all ranks of the replica that a room belongs to.
type replicaRoute struct {
	AttnTPSize int           `json:"attn_tp_size"`
	PPSize     int           `json:"pp_size"`
	DPRank     int           `json:"dp_rank"`
	Ranks      []memberRoute `json:"ranks"` // rank pp_rank*attn_tp_size + tp_rank at that index
}

// memberRoute is one of them.
type memberRoute struct {
	AttnTPRank int `json:"attn_tp_rank"`
	PPRank     int `json:"pp_rank"`
	rankRoute
}

// engineRoute is the answer of GET /route for the engine as a whole.
type engineRoute struct {
	AttnTPSize          int    `json:"attn_tp_size"`
	AttnCPSize          int    `json:"attn_cp_size"`
	DPSize              int    `json:"dp_size"`
	PPSize              int    `json:"pp_size"`
	PageSize            int    `json:"page_size"`
	KVCacheDType        string `json:"kv_cache_dtype"`
	FollowBootstrapRoom bool   `json:"follow_bootstrap_room"`
}

// BootstrapConfig configures the bootstrap server.
type BootstrapConfig struct {
	// Secret signs registrations. Empty: only ranks on loopback may register.
	Secret []byte
}

// Bootstrap tells decode ranks where the prefill ranks of this engine listen. It is an http.Handler with PUT /route,
// GET /route, GET /ranks, POST /register_dp_rank, POST /query_dp_ranks and GET /health; it never says anything secret.
type Bootstrap struct {
	cfg BootstrapConfig
	mux *http.ServeMux

	mu    sync.Mutex
	ranks map[rankKey]registration // len <= maxRanks
	last  *registration            // the newest; its sizes are the engine's
	rooms map[int64]int            // DP rank of a room, where the room does not say; len <= maxRooms
	order []int64                  // keys of rooms, oldest first
}

// NewBootstrap makes a bootstrap server without ranks.
func NewBootstrap(cfg BootstrapConfig) *Bootstrap {
	b := &Bootstrap{cfg: cfg, mux: http.NewServeMux(), ranks: map[rankKey]registration{}, rooms: map[int64]int{}}
	b.mux.HandleFunc("PUT /route", b.register)
	b.mux.HandleFunc("GET /route", b.route)
	b.mux.HandleFunc("GET /ranks", b.replica)
	b.mux.HandleFunc("POST /register_dp_rank", b.registerRoom)
	b.mux.HandleFunc("POST /query_dp_ranks", b.queryRooms)
	b.mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "OK") }) //nolint:errcheck // the client went
	return b
}

func (b *Bootstrap) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.mux.ServeHTTP(w, r) }

const (
	maxRegistrationBytes = 8 << 10
	maxAnswerBytes       = 1 << 20
	signatureHeader      = "X-Sluice-Signature"
)

// sign is the value of signatureHeader for a body.
func sign(secret, body []byte) string {
	return hex.EncodeToString(peer.Proof(secret, label+"register", body))
}

func (b *Bootstrap) register(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRegistrationBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("registration: read body: %v (at most %d bytes)", err, maxRegistrationBytes), http.StatusBadRequest)
		return
	}
	if err := b.authorize(r, body); err != nil {
		http.Error(w, "registration: "+err.Error(), http.StatusForbidden)
		return
	}
	var reg registration
	if err := json.Unmarshal(body, &reg); err != nil {
		http.Error(w, "registration: "+err.Error(), http.StatusBadRequest)
		return
	}
	if err := reg.validate(); err != nil {
		http.Error(w, "registration: "+err.Error(), http.StatusBadRequest)
		return
	}
	if status, err := b.store(reg); err != nil {
		http.Error(w, "registration: "+err.Error(), status)
		return
	}
	io.WriteString(w, "OK") //nolint:errcheck // the client went
}

func (b *Bootstrap) authorize(r *http.Request, body []byte) error {
	if len(b.cfg.Secret) > 0 {
		if !hmac.Equal([]byte(r.Header.Get(signatureHeader)), []byte(sign(b.cfg.Secret, body))) {
			return fmt.Errorf("%s does not fit the body: %w", signatureHeader, errWrongSecret)
		}
		return nil
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !peer.Loopback(host) {
		return fmt.Errorf("from %s: %w", r.RemoteAddr, errNoSecret)
	}
	return nil
}

func (b *Bootstrap) store(reg registration) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	old, known := b.ranks[reg.key()]
	if known && old.StartedWallNanos > reg.StartedWallNanos {
		return http.StatusConflict, fmt.Errorf("a newer run of this rank is registered (incarnation %q)", old.Incarnation)
	}
	if !known && len(b.ranks) >= maxRanks {
		return http.StatusInsufficientStorage, fmt.Errorf("%d ranks are registered already", maxRanks)
	}
	b.ranks[reg.key()] = reg
	b.last = &reg
	return 0, nil
}

func (b *Bootstrap) route(w http.ResponseWriter, r *http.Request) {
	var ids [4]int
	for i, name := range [...]string{"prefill_dp_rank", "prefill_cp_rank", "target_tp_rank", "target_pp_rank"} {
		v, err := strconv.Atoi(r.URL.Query().Get(name))
		if err != nil {
			http.Error(w, fmt.Sprintf("route: query parameter %s: want an integer, all four of prefill_dp_rank, prefill_cp_rank, target_tp_rank and target_pp_rank are needed", name), http.StatusBadRequest)
			return
		}
		ids[i] = v
	}
	b.mu.Lock()
	reg, ok := b.ranks[rankKey{dp: ids[0], cp: ids[1], tp: ids[2], pp: ids[3]}]
	last := b.last
	b.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if ids == [4]int{-1, -1, -1, -1} {
		if last == nil {
			http.Error(w, "route: no prefill rank has registered yet", http.StatusNotFound)
			return
		}
		json.NewEncoder(w).Encode(engineRoute{ //nolint:errcheck // the client went
			AttnTPSize: last.AttnTPSize, AttnCPSize: last.AttnCPSize, DPSize: max(last.AttnDPSize, last.SystemDPSize), PPSize: last.PPSize,
			PageSize: last.PageSize, KVCacheDType: last.KVCacheDType, FollowBootstrapRoom: last.LoadBalanceMethod == FollowRoom,
		})
		return
	}
	if !ok {
		http.Error(w, fmt.Sprintf("route: prefill rank dp=%d cp=%d tp=%d pp=%d has not registered", ids[0], ids[1], ids[2], ids[3]), http.StatusNotFound)
		return
	}
	json.NewEncoder(w).Encode(rankRoute{RankIP: reg.RankIP, RankPort: reg.RankPort, Incarnation: reg.Incarnation}) //nolint:errcheck // the client went
}

// putRoute registers a rank once.
func putRoute(ctx context.Context, client *http.Client, server string, secret []byte, reg registration) error {
	body := mustJSON(reg)
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://"+server+"/route", bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if len(secret) > 0 {
		req.Header.Set(signatureHeader, sign(secret, body))
	}
	_, err = roundTrip(client, req)
	return err
}

// getReplica asks for all ranks of the replica that a room belongs to, once.
func getReplica(ctx context.Context, client *http.Client, server string, room int64) (replicaRoute, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/ranks?bootstrap_room=%d", server, room), nil)
	if err != nil {
		return replicaRoute{}, err
	}
	body, err := roundTrip(client, req)
	if err != nil {
		return replicaRoute{}, err
	}
	var r replicaRoute
	if err := json.Unmarshal(body, &r); err != nil {
		return replicaRoute{}, fmt.Errorf("answer of %s: %w", req.URL, err)
	}
	if err := r.validate(); err != nil {
		return replicaRoute{}, fmt.Errorf("answer of %s: %w", req.URL, err)
	}
	return r, nil
}

// statusError is an answer other than 200.
type statusError struct {
	status int
	text   string
}

func (e *statusError) Error() string { return fmt.Sprintf("HTTP %d: %s", e.status, e.text) }

func roundTrip(client *http.Client, req *http.Request) ([]byte, error) {
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, &statusError{status: resp.StatusCode, text: string(bytes.TrimSpace(body[:min(len(body), 512)]))}
	}
	return body, nil
}

// worthRetrying reports whether asking the bootstrap server again may help: it is just starting, or its rank is.
func worthRetrying(err error) bool {
	var s *statusError
	if errors.As(err, &s) {
		return s.status == http.StatusNotFound || s.status == http.StatusTooEarly || s.status >= 500
	}
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF)
}

// tooEarly reports whether the bootstrap server will know the answer later.
func tooEarly(err error) bool {
	var s *statusError
	return errors.As(err, &s) && s.status == http.StatusTooEarly
}

// retry calls f until it succeeds, gives an error that is not worth another try, or ctx ends; pauses double from first to most.
func retry(ctx context.Context, first, most time.Duration, again func(error) bool, f func() error) error {
	pause := first
	for {
		err := f()
		if err == nil || !again(err) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			t.Stop()
			return err
		case <-t.C:
		}
		pause = min(2*pause, most)
	}
}
