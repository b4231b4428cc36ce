package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-dev/sluice/engine/node"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/internal/peer"
	"github.com/sluice-dev/sluice/internal/version"
)

// checkNodes refuses several nodes without what they need.
func (c *Config) checkNodes(refuse refusal) {
	if c.NNodes < 1 {
		refuse("nnodes", "is %d: give 1, or the number of nodes of the replica", c.NNodes)
		return
	}
	if c.DistTimeout <= 0 {
		refuse("dist-timeout", "is %v: give seconds, more than 0", c.DistTimeout)
	}
	if c.NNodes == 1 {
		if c.NodeRank != 0 {
			refuse("node-rank", "is %d, but --nnodes is 1: give --nnodes too", c.NodeRank)
		}
		return
	}
	if c.DistSecret == "" {
		c.DistSecret = c.Rank.Disagg.Secret
	}
	if _, err := c.nodes().Validate(); err != nil {
		name, rest, _ := strings.Cut(strings.TrimPrefix(err.Error(), "--"), " ")
		refuse(name, "%s", rest)
	}
	if world := max(1, c.Rank.TPSize) * max(1, c.Rank.PPSize); world%c.NNodes != 0 {
		refuse("nnodes", "is %d, but --tp-size %d times --pp-size %d is %d: the number of nodes must divide the ranks of a replica of the model",
			c.NNodes, max(1, c.Rank.TPSize), max(1, c.Rank.PPSize), world)
	}
}

// nodes is how the nodes of the replica meet.
func (c Config) nodes() node.Config {
	mode := "null"
	if c.Rank.Disagg.Mode != rank.ModeUnified {
		mode = string(c.Rank.Disagg.Mode)
	}
	return node.Config{
		Nodes: c.NNodes, Rank: c.NodeRank, Address: c.DistInitAddr, Secret: []byte(c.DistSecret), JoinTimeout: c.DistTimeout,
		Shape: fmt.Sprintf("--tp-size %d --pp-size %d --dp-size %d --disaggregation-mode %s in version %s",
			c.Rank.TPSize, c.Rank.PPSize, c.DPSize, mode, version.Version),
	}
}

// orders are what node 0 tells the others to start. Its flags count, but for those that say where things are on a node.
type orders struct {
	Rank       rank.Config `json:"rank"`
	Rendezvous []string    `json:"rendezvous"` // of the world of each DP rank
}

// joint is what a world has whose ranks lie on several nodes.
type joint interface {
	rank.Client
	// Fail ends it because of something that went wrong on another node.
	Fail(cause error)
	// Doomed is closed as soon as Err is known, before Done.
	Doomed() <-chan struct{}
}

func jointly(clients []rank.Client) ([]joint, error) {
	all := make([]joint, len(clients))
	for i, c := range clients {
		j, ok := c.(joint)
		if !ok {
			return nil, fmt.Errorf("a world of type %T can't lie on several nodes", c)
		}
		all[i] = j
	}
	return all, nil
}

// startReplica starts the ranks of this node, and on several nodes first gathers the others and tells them to start theirs.
func (s *Server) startReplica(ctx context.Context, run Runtime, cfg rank.Config) (_ rank.Client, err error) {
	if s.cfg.NNodes == 1 {
		return s.startRanks(ctx, run, cfg)
	}
	leader, err := node.Listen(s.cfg.nodes(), func(what string, args ...any) { s.log.Info(what, args...) })
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			leader.End(err)
		}
	}()
	s.log.Info("waiting for the other nodes", "nnodes", s.cfg.NNodes, "dist_init_addr", s.cfg.DistInitAddr)
	watch := s.newStopwatch()
	if err := leader.Gather(ctx); err != nil {
		return nil, err
	}
	watch.step(stepNodes)
	cfgs, order, err := s.spread(cfg)
	if err != nil {
		return nil, err
	}
	leader.Start(order)
	clients, err := startWhile(ctx, run, cfgs, leader.Lost(), leader.Err)
	if err != nil {
		return nil, err
	}
	if err := leader.Ready(ctx); err != nil {
		return nil, errors.Join(err, closeRanks(clients))
	}
	worlds, err := jointly(clients)
	if err != nil {
		return nil, errors.Join(err, closeRanks(clients))
	}
	client, err := s.control(clients)
	if err != nil {
		return nil, errors.Join(err, closeRanks(clients))
	}
	r := &replica{Client: client, leader: leader, done: make(chan struct{})}
	go r.watch(worlds)
	return r, nil
}

// spread gives the configurations of node 0's worlds, with a listener where the ranks of other nodes meet them, and the
// orders for the other nodes.
func (s *Server) spread(cfg rank.Config) (cfgs []rank.Config, order []byte, err error) {
	cfgs = dataParallel(cfg, s.cfg.DPSize)
	defer func() {
		if err != nil {
			for _, c := range cfgs {
				if c.Nodes.Listener != nil {
					_ = c.Nodes.Listener.Close() // nobody has used it
				}
			}
		}
	}()
	o := orders{Rank: cfg}
	o.Rank.Disagg.Secret = "" // each node has its own copy
	host := s.cfg.nodes().Host()
	for i := range cfgs {
		at := ""
		if peer.Loopback(host) {
			at = host
		}
		ln, err := net.Listen("tcp", net.JoinHostPort(at, "0"))
		if err != nil {
			return nil, nil, fmt.Errorf("listen for the ranks of other nodes: %w", err)
		}
		n := &cfgs[i].Nodes
		n.Listener = ln.(*net.TCPListener)
		n.Count, n.Secret = s.cfg.NNodes, s.cfg.DistSecret
		n.Rendezvous = net.JoinHostPort(host, strconv.Itoa(ln.Addr().(*net.TCPAddr).Port))
		o.Rendezvous = append(o.Rendezvous, n.Rendezvous)
	}
	order, err = json.Marshal(o)
	return cfgs, order, err
}

// startWhile starts ranks until lost is closed; then the reason for that counts.
func startWhile(ctx context.Context, run Runtime, cfgs []rank.Config, lost <-chan struct{}, why func() error) ([]rank.Client, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-lost:
			cancel()
		case <-over:
		}
	}()
	clients, err := startAll(ctx, run, cfgs)
	if err == nil {
		return clients, nil
	}
	// A rank that lost one of another node knows less than that node, whose word is on its way.
	word := time.NewTimer(nodeWord)
	defer word.Stop()
	select {
	case <-lost:
		if cause := why(); cause != nil {
			return nil, cause
		}
	case <-word.C:
	}
	return nil, err
}

// nodeWord is how long the word of another node is waited for that may explain what went wrong here.
const nodeWord = 500 * time.Millisecond

// replica is the client of a replica on several nodes.
type replica struct {
	rank.Client
	leader *node.Leader
	done   chan struct{}
}

// watch ends all nodes when one ends.
func (r *replica) watch(worlds []joint) {
	defer close(r.done)
	doomed := make(chan error, len(worlds))
	for _, w := range worlds {
		go func() {
			<-w.Doomed()
			doomed <- w.Err()
		}()
	}
	var cause error
	select {
	case cause = <-doomed:
	case <-r.leader.Lost():
		cause = r.leader.Err()
		for _, w := range worlds {
			w.Fail(cause)
		}
	}
	r.leader.End(cause)
	<-r.Client.Done()
}

// Done implements rank.Client.
func (r *replica) Done() <-chan struct{} { return r.done }

// Close implements rank.Client: the other nodes end with this one.
func (r *replica) Close(ctx context.Context) error {
	told := make(chan struct{})
	go func() {
		defer close(told)
		r.leader.End(nil)
	}()
	err := r.Client.Close(ctx)
	select {
	case <-told:
	case <-ctx.Done(): // a node that takes no word; it ends by itself
	}
	return err
}
