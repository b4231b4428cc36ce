package rank

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"

	"github.com/sluice-dev/sluice/engine/disagg"
	"github.com/sluice-dev/sluice/engine/parallel"
	"github.com/sluice-dev/sluice/engine/request"
	"github.com/sluice-dev/sluice/engine/scheduler"
)

// peers is the rank's end of prefill-decode disaggregation; both are nil on a unified rank.
type peers struct {
	prefill *disagg.Prefill
	decode  *disagg.Decode
}

func openPeers(c DisaggConfig, dpSize, dpRank int, place parallel.Place, layout disagg.Layout, pages disagg.Pages, wake func(), log *slog.Logger) (peers, error) {
	cfg := disagg.Config{
		Place:            place,
		Secret:           []byte(c.Secret),
		BootstrapTimeout: c.BootstrapTimeout,
		WaitingTimeout:   c.WaitingTimeout,
		Wake:             wake,
		Listener:         func(e disagg.Event) { logPeer(log, e) },
	}
	switch c.Mode {
	case ModePrefill:
		server, err := hostPort(c.BootstrapURL)
		if err != nil {
			return peers{}, err
		}
		cfg.Listen = net.JoinHostPort(c.ListenHost, "0")
		cfg.AdvertiseHost = c.AdvertiseHost
		cfg.Bootstrap = server
		cfg.DPSize, cfg.DPRank, cfg.LoadBalance = dpSize, dpRank, c.LoadBalance
		p, err := disagg.NewPrefill(cfg, layout, pages)
		return peers{prefill: p}, err
	case ModeDecode:
		d, err := disagg.NewDecode(cfg, layout, pages)
		return peers{decode: d}, err
	default:
		return peers{}, nil
	}
}

// hostPort takes a bootstrap server as http://host:port or host:port.
func hostPort(bootstrap string) (string, error) {
	address := bootstrap
	if strings.Contains(bootstrap, "://") {
		u, err := url.Parse(bootstrap)
		if err != nil || u.Scheme != "http" {
			return "", fmt.Errorf("bootstrap URL is %q: write it like http://127.0.0.1:8998", bootstrap)
		}
		address = u.Host
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", fmt.Errorf("bootstrap URL is %q: write it like http://127.0.0.1:8998", bootstrap)
	}
	return address, nil
}

func logPeer(log *slog.Logger, e disagg.Event) {
	level, what := slog.LevelInfo, "KV peer"
	switch e.Kind {
	case disagg.EventRegistered:
		what = "registered at the bootstrap server"
	case disagg.EventRegisterRetry:
		what = "registration at the bootstrap server failed, trying again"
	case disagg.EventRefused:
		level, what = slog.LevelWarn, "refused a connection of a KV peer"
	case disagg.EventFailed:
		level, what = slog.LevelWarn, "a KV transfer failed"
		if r := disagg.ReasonOf(e.Err); r == disagg.ReasonAborted || r == disagg.ReasonPeerAborted {
			level = slog.LevelDebug // a client went away
		}
	}
	args := []any{"peer", e.Peer}
	if e.Room != 0 {
		args = append(args, "room", e.Room)
	}
	if e.Err != nil {
		args = append(args, "error", e.Err)
	}
	log.Log(context.Background(), level, what, args...)
}

// sender and receiver give the scheduler's interfaces; nil where the role has none.
func (p peers) sender() scheduler.Sender {
	if p.prefill == nil {
		return nil
	}
	return sender{p.prefill}
}

func (p peers) receiver() scheduler.Receiver {
	if p.decode == nil {
		return nil
	}
	return receiver{p.decode}
}

// close ends all transfers; afterwards no goroutine touches a page.
func (p peers) close() error {
	if p.prefill != nil {
		return p.prefill.Close()
	}
	if p.decode != nil {
		return p.decode.Close()
	}
	return nil
}

type sender struct{ *disagg.Prefill }

func (s sender) Open(room int64, promptTokens int) (scheduler.Sending, error) {
	t, err := s.Prefill.Open(room, promptTokens)
	if err != nil {
		return nil, err
	}
	return t, nil
}

type receiver struct{ *disagg.Decode }

func (r receiver) Open(at request.Bootstrap, promptTokens int) (scheduler.Receiving, error) {
	t, err := r.Decode.Open(at, promptTokens)
	if err != nil {
		return nil, err
	}
	return t, nil
}
