package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/sluice-dev/sluice/engine/node"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/internal/peer"
)

// serveNode runs a node other than 0: it hosts its ranks and answers probes and scrapes. It returns nil when node 0 ended
// the replica in order, else the reason.
func serveNode(ctx context.Context, cfg Config, run Runtime) (err error) {
	observer, err := newObserver(cfg, run)
	if err != nil {
		return err
	}
	defer observer.end(run.Log)
	s := New(cfg, Options{Events: observer.events, Metrics: observer.exposition, Clock: run.Clock, Log: run.Log})
	api, err := listen("--port", cfg.Host, cfg.Port, s, run.Log)
	if err != nil {
		return err
	}
	defer api.close()
	if run.Listening != nil {
		run.Listening(api.addr(), nil)
	}
	s.log.Info("listening", "address", api.addr().String(), "node_rank", cfg.NodeRank, "node_0", cfg.DistInitAddr)

	member, order, err := node.Join(ctx, cfg.nodes())
	switch {
	case err != nil && ctx.Err() != nil:
		s.log.Info("ended before node 0 came", "cause", err)
		return nil
	case err != nil:
		return err
	}
	defer member.Close()
	worlds, err := s.obey(ctx, run, member, order, observer.dir)
	if err != nil {
		member.Fail(err)
		return err
	}
	s.moveTo(phaseServing)
	s.log.Info("serving", "node_rank", cfg.NodeRank, "node_0", cfg.DistInitAddr)
	err = s.attend(ctx, member, worlds)
	s.Refuse()
	api.shutdown(context.Background())
	return err
}

// obey starts what node 0 ordered.
func (s *Server) obey(ctx context.Context, run Runtime, member *node.Member, order []byte, metricsDir string) ([]joint, error) {
	var o orders
	if err := json.Unmarshal(order, &o); err != nil {
		return nil, fmt.Errorf("orders of node 0: %w: run the same release on all nodes", err)
	}
	if len(o.Rendezvous) != s.cfg.DPSize {
		return nil, fmt.Errorf("node 0 ordered %d worlds, --dp-size is %d here", len(o.Rendezvous), s.cfg.DPSize)
	}
	cfgs := dataParallel(s.local(o.Rank, metricsDir), s.cfg.DPSize)
	for i := range cfgs {
		cfgs[i].Nodes = rank.NodesConfig{Count: s.cfg.NNodes, Rank: s.cfg.NodeRank, Rendezvous: o.Rendezvous[i], Secret: s.cfg.DistSecret}
	}
	clients, err := startWhile(ctx, run, cfgs, member.Done(), member.Err)
	if err != nil {
		return nil, err
	}
	worlds, err := jointly(clients)
	if err == nil {
		err = member.Ready()
	}
	if err != nil {
		return nil, errors.Join(err, closeRanks(clients))
	}
	return worlds, nil
}

// local gives node 0's configuration with what is this node's own.
func (s *Server) local(c rank.Config, metricsDir string) rank.Config {
	own := s.cfg.Rank
	c.ModelDir, c.Metrics.Dir, c.Threads, c.LogLevel = own.ModelDir, metricsDir, own.Threads, own.LogLevel
	c.Metrics.Enabled = own.Metrics.Enabled
	c.Disagg.ListenHost, c.Disagg.AdvertiseHost, c.Disagg.Secret = own.Disagg.ListenHost, own.Disagg.AdvertiseHost, own.Disagg.Secret
	if u, err := url.Parse(c.Disagg.BootstrapURL); err == nil && u.Host != "" && peer.Loopback(u.Hostname()) {
		u.Host = net.JoinHostPort(s.cfg.nodes().Host(), u.Port()) // as node 0 reaches itself
		c.Disagg.BootstrapURL = u.String()
	}
	return c
}

// attend waits for the end of the replica and ends the ranks of this node with it. Asked to end itself, it stays until
// node 0 has drained, at most for the time that a drain may take.
func (s *Server) attend(ctx context.Context, member *node.Member, worlds []joint) error {
	doomed := make(chan error, len(worlds))
	for _, w := range worlds {
		go func() {
			<-w.Doomed()
			doomed <- w.Err()
		}()
	}
	asked := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case <-member.Done():
			cause := member.Err()
			if cause != nil {
				for _, w := range worlds {
					w.Fail(cause)
				}
			}
			return errors.Join(cause, s.leaveWorlds(worlds))
		case cause := <-doomed:
			if cause != nil {
				member.Fail(cause)
			}
			return errors.Join(cause, s.leaveWorlds(worlds))
		case <-asked:
			s.log.Info("asked to end: the ranks stay until node 0 ends", "timeout", s.cfg.DrainTimeout)
			s.Leave()
			asked = nil
			t := time.NewTimer(s.cfg.DrainTimeout + endGrace)
			defer t.Stop()
			late = t.C
		case <-late:
			err := errors.New("this node was asked to end, and node 0 did not")
			member.Fail(err)
			return errors.Join(err, s.leaveWorlds(worlds))
		}
	}
}

func (s *Server) leaveWorlds(worlds []joint) error {
	clients := make([]rank.Client, len(worlds))
	for i, w := range worlds {
		clients[i] = w
	}
	return closeRanks(clients)
}

// nodeRows are the routes of a node other than 0: probes and scrapes; whoever sends anything else is told where to.
func (s *Server) nodeRows(rows []route) []route {
	for i, r := range rows {
		switch r.pattern {
		case "/health", "/health_generate":
			rows[i].handle = s.nodeHealth
		case "/metrics", "/metrics/":
		default:
			rows[i].handle = s.elsewhere
		}
	}
	return rows
}

// nodeHealth says whether this node's ranks are up; node 0 proves that they compute.
func (s *Server) nodeHealth(w http.ResponseWriter, _ *http.Request) {
	if err := s.ready(); err != nil {
		writeError(w, err)
		return
	}
	w.WriteHeader(http.StatusOK)
}

// elsewhere refuses what node 0 answers.
func (s *Server) elsewhere(w http.ResponseWriter, _ *http.Request) {
	writeError(w, failure(http.StatusMisdirectedRequest, codeNotFound, "this is node %d of %d, which only computes: send the request to node 0, on %s",
		s.cfg.NodeRank, s.cfg.NNodes, s.cfg.nodes().Host()))
}
