package rank

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// goodbyeGrace is how long a rank that ends waits for the API process to take the last outputs.
const goodbyeGrace = 2 * time.Second

// Child is the whole of a rank process that Start made: the first line of in is the configuration, the end of in means
// that the parent is gone or wants the rank to end. out gets a hello when the rank serves, or the reason why it ended;
// link carries the requests and is closed at the end. Callers pass standard input, ReportFile and LinkFile.
func Child(ctx context.Context, in io.Reader, out io.Writer, link *os.File) error {
	err := child(ctx, in, out, link)
	if err != nil {
		// The parent may be gone; the exit status says the same.
		_ = json.NewEncoder(out).Encode(hello{Error: err.Error()})
	}
	return err
}

// ReportFile is the pipe on which a rank process says hello to its parent.
func ReportFile() *os.File { return os.NewFile(3, "rank report") }

// LinkFile is the socket on which a rank process serves its parent.
func LinkFile() *os.File { return os.NewFile(4, "rank link") }

// rendezvousFile is the listener that rank 0 of a world on several nodes gets.
func rendezvousFile() *os.File { return os.NewFile(5, "rank rendezvous") }

// hello is the one line, or the two, that a child writes to its parent.
type hello struct {
	Serving bool   `json:"serving,omitempty"`
	Error   string `json:"error,omitempty"`
}

func child(ctx context.Context, in io.Reader, out io.Writer, link *os.File) error {
	defer link.Close()
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read the rank's configuration from standard input: %w: a rank is started by serve, not by hand", err)
	}
	var cfg Config
	if err := json.Unmarshal(line, &cfg); err != nil {
		return fmt.Errorf("rank configuration: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, lines) // any end of the pipe is the parent's
		cancel()
	}()
	world, err := join(ctx, cfg)
	if err != nil {
		return err
	}
	if world != nil {
		defer world.Close() // what it could not give back goes with the process
	}
	return run(ctx, cfg, world, newLogger(cfg, os.Stderr), func() (net.Listener, error) { return listenLink(link) }, func() {
		_ = json.NewEncoder(out).Encode(hello{Serving: true}) // a parent that is gone ends ctx
	})
}

func newLogger(cfg Config, to io.Writer) *slog.Logger {
	level := slog.LevelInfo
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // Validate names a bad level
	log := slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: level})).With("rank", cfg.Rank)
	if cfg.DPRank != nil {
		log = log.With("dp_rank", *cfg.DPRank)
	}
	return log
}

// run is a rank from configuration to end: one of a world, which stays the caller's, or alone with nil. ready is called when
// it serves.
func run(ctx context.Context, cfg Config, world *parallel.World, log *slog.Logger, listen func() (net.Listener, error), ready func()) (err error) {
	if cfg, err = cfg.Validate(); err != nil {
		return err
	}
	p, err := assemble(ctx, cfg, world, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	ln, err := listen()
	if err != nil {
		return err
	}
	log.Info("rank serves", "model", cfg.ModelDir, "engine_type", cfg.Disagg.Mode.EngineType(), "model_id", p.info.ModelID,
		"max_total_num_tokens", p.info.MaxTotalNumTokens, "page_size", p.info.PageSize, "context_length", p.info.ContextLength)

	svc := newService(p.info, p.scheduler, log)
	srv := svc.server()
	serving := make(chan error, 1)
	go func() { serving <- srv.Serve(ln) }()
	ready()
	err = p.scheduler.Run(ctx)
	close(svc.ended)
	svc.profiles.Close()
	stop(srv)
	return errors.Join(err, <-serving)
}

// stop lets the connection take the last outputs, for a while.
func stop(srv *grpc.Server) {
	done := make(chan struct{})
	go func() {
		srv.GracefulStop()
		close(done)
	}()
	t := time.NewTimer(goodbyeGrace)
	defer t.Stop()
	select {
	case <-done:
	case <-t.C:
		srv.Stop()
		<-done
	}
}
