package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
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

// serveNode runs a node other than 0: it hosts its ranks and answers probes and scrapes. It returns nil when node 0 ended
// the replica in order, else the reason.
func serveNode(ctx context.Context, cfg Config, run Runtime) (err error) {
	observer, err := newObserver(cfg, run.Clock)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, observer.close()) }()
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
