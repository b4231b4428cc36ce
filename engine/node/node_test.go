package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing is expected to take it.
const patience = time.Minute

func waiting(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func lead(t *testing.T, cfg Config) (*Leader, Config) {
	t.Helper()
	cfg.Address = "127.0.0.1:0"
	l, err := Listen(cfg, func(string, ...any) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.End(nil) })
	cfg.Address = l.Addr().String()
	return l, cfg
}

// join joins in the background, as nodes do.
func join(t *testing.T, cfg Config, rank int) <-chan joined {
	t.Helper()
	cfg.Rank = rank
	c := make(chan joined, 1)
	go func() {
		m, orders, err := Join(waiting(t), cfg)
		c <- joined{m, string(orders), err}
	}()
	return c
}

type joined struct {
	*Member
	orders string
	err    error
}

// together starts a replica of three nodes.
func together(t *testing.T, cfg Config) (*Leader, []joined) {
	t.Helper()
	cfg.Nodes, cfg.Secret = 3, []byte("s")
	l, cfg := lead(t, cfg)
	calls := []<-chan joined{join(t, cfg, 2), join(t, cfg, 1)}
	if err := l.Gather(waiting(t)); err != nil {
		t.Fatal(err)
	}
	l.Start([]byte("go"))
	members := make([]joined, len(calls))
	for i, c := range calls {
		members[i] = <-c
		if members[i].err != nil || members[i].orders != "go" {
			t.Fatalf("join gives %q, %v", members[i].orders, members[i].err)
		}
		t.Cleanup(members[i].Close)
		if err := members[i].Ready(); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Ready(waiting(t)); err != nil {
		t.Fatal(err)
	}
	return l, members
}

func TestEndInOrder(t *testing.T) {
	l, members := together(t, Config{})
	l.End(nil)
	for _, m := range members {
		<-m.Done()
		if err := m.Err(); err != nil {
			t.Errorf("a member ends with %v", err)
		}
	}
	if err := l.Err(); err != nil {
		t.Errorf("the leader ends with %v", err)
	}
}

func TestEndWithCause(t *testing.T) {
	l, members := together(t, Config{})
	l.End(errors.New("rank 0 was killed"))
	for _, m := range members {
		<-m.Done()
		if err := m.Err(); err == nil || err.Error() != "node 0 ended the replica: rank 0 was killed" {
			t.Errorf("a member ends with %v", err)
		}
	}
}

func TestMemberFails(t *testing.T) {
	l, members := together(t, Config{})
	members[0].Fail(errors.New("rank 5 (pid 7) ended: signal: killed"))
	<-l.Lost()
	if err := l.Err(); err == nil || err.Error() != "node 2: rank 5 (pid 7) ended: signal: killed" {
		t.Errorf("the leader ends with %v", err)
	}
}

func TestMemberDies(t *testing.T) {
	l, members := together(t, Config{})
	members[1].line.close() // as the system does it for a process that dies
	<-l.Lost()
	if err := l.Err(); err == nil || err.Error() != "node 1 is gone: the connection is closed" {
		t.Errorf("the leader ends with %v", err)
	}
}

func TestLeaderDies(t *testing.T) {
	l, members := together(t, Config{})
	for _, line := range l.members {
		line.close()
	}
	for _, m := range members {
		<-m.Done()
		if err := m.Err(); err == nil || err.Error() != "node 0 is gone: the connection is closed" {
			t.Errorf("a member ends with %v", err)
		}
	}
}

// TestSilence: a machine that is gone says nothing, not even that it is gone.
func TestSilence(t *testing.T) {
	l, cfg := lead(t, Config{Nodes: 2, Silence: 50 * time.Millisecond})
	conn, err := net.Dial("tcp", cfg.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := greet(conn, nil, hello{Node: 1, Nodes: 2}); err != nil {
		t.Fatal(err)
	}
	if err := l.Gather(waiting(t)); err != nil && !strings.Contains(err.Error(), "node 1") {
		t.Fatal(err)
	}
	<-l.Lost()
	if err := l.Err(); err == nil || err.Error() != "node 1 is gone: nothing came for 50ms" {
		t.Errorf("the leader ends with %v", err)
	}
}

func TestRefusals(t *testing.T) {
	base := Config{Nodes: 3, Secret: []byte("s"), Shape: "--tp-size 2"}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"secret", func(c *Config) { c.Secret = []byte("other") }, "the secrets of the nodes differ"},
		{"no secret", func(c *Config) { c.Secret = nil }, "the secrets of the nodes differ"},
		{"number of nodes", func(c *Config) { c.Nodes = 4 }, "its --nnodes is 4, that of node 0 is 3"},
		{"shape", func(c *Config) { c.Shape = "--tp-size 4" }, "it was started with --tp-size 4, node 0 with --tp-size 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, cfg := lead(t, base)
			c.change(&cfg)
			cfg.Rank = 1
			if _, _, err := Join(waiting(t), cfg); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Join gives %v, want %q", err, c.want)
			}
		})
	}
	t.Run("the same rank twice", func(t *testing.T) {
		l, cfg := lead(t, base)
		first := join(t, cfg, 1)
		ctx := waiting(t)
		for there := false; !there; {
			l.mu.Lock()
			there = l.members[1] != nil
			l.mu.Unlock()
			if ctx.Err() != nil {
				t.Fatal("node 1 does not come")
			}
		}
		cfg.Rank = 1
		if _, _, err := Join(ctx, cfg); err == nil || !strings.Contains(err.Error(), "--node-rank 1 is here already") {
			t.Errorf("a second node 1 gets %v", err)
		}
		l.End(errors.New("no more"))
		if j := <-first; j.err == nil || j.err.Error() != "node 0 ended the replica: no more" {
			t.Errorf("the first gets %v", j.err)
		}
	})
}

// flaky is a listener that fails some times before it works.
type flaky struct {
	net.Listener
	failures int
}

func (f *flaky) Accept() (net.Conn, error) {
	if f.failures > 0 {
		f.failures--
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

// TestAcceptFails: a machine that is out of descriptors for a moment does not shut the other nodes out.
func TestAcceptFails(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := Config{Nodes: 2, Secret: []byte("s"), Address: ln.Addr().String()}.Validate()
	if err != nil {
		t.Fatal(err)
	}
	l := listenOn(&flaky{Listener: ln, failures: 3}, cfg, func(string, ...any) {})
	t.Cleanup(func() { l.End(nil) })
	other := join(t, cfg, 1)
	if err := l.Gather(waiting(t)); err != nil {
		t.Fatal(err)
	}
	l.Start([]byte("go"))
	m := <-other
	if m.err != nil || m.orders != "go" {
		t.Fatalf("the node got %q, %v", m.orders, m.err)
	}
	m.Close()
}

func TestMissingNodesAreNamed(t *testing.T) {
	l, cfg := lead(t, Config{Nodes: 4, JoinTimeout: 50 * time.Millisecond})
	cfg.JoinTimeout = patience
	here := join(t, cfg, 2)
	err := l.Gather(waiting(t))
	if err == nil || !strings.Contains(err.Error(), "node 1,") || !strings.Contains(err.Error(), "3: they did not come within 50ms") {
		t.Errorf("Gather gives %v", err)
	}
	l.End(err)
	if j := <-here; j.err == nil {
		t.Error("the node that came is not told")
	}
}

func TestNobodyListens(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	_, _, err = Join(waiting(t), Config{Nodes: 2, Rank: 1, Address: address, JoinTimeout: 50 * time.Millisecond})
	if err == nil || !strings.Contains(err.Error(), "join node 0 at --dist-init-addr "+address+": it took longer than 50ms: the last try") {
		t.Errorf("Join gives %v", err)
	}
}

func TestValidate(t *testing.T) {
	good := Config{Nodes: 2, Rank: 1, Address: "127.0.0.1:1"}
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"one node", func(c *Config) { c.Nodes = 1 }, "--nnodes is 1"},
		{"rank", func(c *Config) { c.Rank = 2 }, "--node-rank is 2: give 0 to 1, --nnodes is 2"},
		{"negative rank", func(c *Config) { c.Rank = -1 }, "--node-rank is -1"},
		{"no address", func(c *Config) { c.Address = "" }, `--dist-init-addr is ""`},
		{"no port", func(c *Config) { c.Address = "h" }, `--dist-init-addr is "h"`},
		{"no secret", func(c *Config) { c.Address = "h:1" }, "--dist-init-addr h:1 is not a loopback address and there is no secret"},
		{"good", func(*Config) {}, ""},
		{"secret", func(c *Config) { c.Address, c.Secret = "h:1", []byte("s") }, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := good
			c.change(&cfg)
			if _, err := cfg.Validate(); fmt.Sprint(err) != "<nil>" && c.want == "" || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("Validate gives %v, want %q", err, c.want)
			}
		})
	}
}

// FuzzLeader: what a stranger sends makes no node of it and harms nobody.
func FuzzLeader(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02{}"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, said []byte) {
		ours, theirs := net.Pipe()
		got := make(chan error, 1)
		go func() {
			_, err := receive(ours, []byte("s"), func(hello) error { return nil })
			_ = ours.Close()
			got <- err
		}()
		go func() {
			b := make([]byte, 1<<10)
			for {
				if _, err := theirs.Read(b); err != nil {
					return
				}
			}
		}()
		_, _ = theirs.Write(said)
		_ = theirs.Close()
		if err := <-got; err == nil {
			t.Error("a stranger is let in")
		}
	})
}
