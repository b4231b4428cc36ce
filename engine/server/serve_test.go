package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/engine/metrics"
	"github.com/sluice-dev/sluice/engine/model"
	"github.com/sluice-dev/sluice/engine/profile"
	"github.com/sluice-dev/sluice/engine/rank"
	"github.com/sluice-dev/sluice/engine/tokenizer"
)

// seededModel writes a small model.
func seededModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	seeded, err := tokenizer.WriteSeeded(dir, 300, 1)
	if err != nil {
		t.Fatal(err)
	}
	options := model.SeededOptions{Hidden: 32, Layers: 1, Heads: 2, VocabSize: seeded.VocabSize, ContextLength: 256, EOSTokenIDs: seeded.EOSTokenIDs}
	if err := model.WriteSeeded(dir, options); err != nil {
		t.Fatal(err)
	}
	return dir
}

// run is a replica in this process.
type run struct {
	url    string
	client rank.Client // of the rank
	stop   context.CancelFunc
	ended  chan error
}

// serve runs Serve with a rank in this process and waits until it serves.
func serve(t *testing.T, change func(*Config)) *run {
	t.Helper()
	return serveWith(t, change, nil)
}

// serveWith is serve with series that are made elsewhere.
func serveWith(t *testing.T, change func(*Config), backends map[metrics.Source]metrics.Backend) *run {
	t.Helper()
	return serveRank(t, change, backends, func(c rank.Client) rank.Client { return c })
}

// serveRank is serveWith with a rank that the test has changed.
func serveRank(t *testing.T, change func(*Config), backends map[metrics.Source]metrics.Backend, wrap func(rank.Client) rank.Client) *run {
	t.Helper()
	cfg := Default()
	cfg.ModelPath, cfg.ServedModelName, cfg.Port, cfg.BootstrapPort = seededModel(t), "tiny", 0, 0
	cfg.DrainAccept, cfg.EnableMetrics, cfg.MetricsDir = 0, true, t.TempDir()
	cfg.Rank.MaxTotalTokens, cfg.Rank.Threads, cfg.Rank.LogLevel = 512, 1, "error"
	change(&cfg)
	ctx, stop := context.WithCancel(context.Background())
	r := &run{stop: stop, ended: make(chan error, 1)}
	listening := make(chan net.Addr, 1)
	started := make(chan rank.Client, 1)
	go func() {
		r.ended <- Serve(ctx, cfg, Runtime{
			Log:       slog.New(slog.NewTextHandler(io.Discard, nil)),
			Backends:  backends,
			Listening: func(api, _ net.Addr) { listening <- api },
			StartRank: func(ctx context.Context, c rank.Config) (rank.Client, error) {
				client, err := rank.StartInProcess(ctx, c)
				if err == nil {
					client = wrap(client)
				}
				started <- client
				return client, err
			},
		})
	}()
	t.Cleanup(func() {
		stop()
		http.DefaultClient.CloseIdleConnections()
	})
	select {
	case address := <-listening:
		r.url = "http://" + address.String()
	case err := <-r.ended:
		t.Fatal(err)
	}
	r.client = <-started
	eventually(t, "it is healthy", func() bool {
		status, _ := r.ask(t, http.MethodGet, "/health", "")
		return status == http.StatusOK
	})
	return r
}

func (r *run) ask(t *testing.T, method, path, body string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(data)
}

// TestServe: a replica of each role starts, is healthy through its real rank, drains and leaves nothing.
func TestServe(t *testing.T) {
	for _, mode := range []rank.Mode{rank.ModeUnified, rank.ModePrefill, rank.ModeDecode} {
		t.Run(mode.EngineType(), func(t *testing.T) {
			r := serve(t, func(c *Config) { c.Rank.Disagg.Mode = mode })
			if mode == rank.ModeUnified {
				status, body := r.ask(t, http.MethodPost, "/v1/completions", `{"prompt":"the mill","max_tokens":4,"ignore_eos":true,"temperature":0}`)
				if status != http.StatusOK || !strings.Contains(body, `"completion_tokens":4`) {
					t.Errorf("status %d: %s", status, body)
				}
			}
			if status, body := r.ask(t, http.MethodGet, "/metrics", ""); status != http.StatusOK || !strings.Contains(body, `engine_type="`+mode.EngineType()+`"`) {
				t.Errorf("metrics: status %d:\n%s", status, body)
			}
			r.stop()
			if err := <-r.ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// elsewhere is a rank of this process that says it is another's, so that this one has a recorder of its own.
type elsewhere struct{ rank.Client }

func (e elsewhere) Info() rank.Info {
	info := e.Client.Info()
	info.PID++
	return info
}
func (elsewhere) StartProfile(context.Context, profile.Options) error     { return nil }
func (elsewhere) StopProfile(context.Context) (files []string, err error) { return nil, nil }

// TestServeEndsRecording: what the API process records when the replica ends is a whole profile, and nobody counts steps then.
func TestServeEndsRecording(t *testing.T) {
	dir := t.TempDir()
	r := serveRank(t, func(c *Config) { c.ProfilerDir = dir }, nil, func(c rank.Client) rank.Client { return elsewhere{c} })
	if status, body := r.ask(t, http.MethodPost, "/start_profile", `{"profile_id":"p","num_steps":1000000}`); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	r.stop()
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "p-api-*.pprof"))
	if len(files) != 2 || err != nil { // of the processor and of the heap
		t.Fatalf("files %v, %v", files, err)
	}
	for _, path := range files {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		unzipped, err := gzip.NewReader(bytes.NewReader(data))
		if err == nil {
			_, err = io.Copy(io.Discard, unzipped)
		}
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// TestServeRankEnds: when the rank ends, so does the replica, with the rank's error.
func TestServeRankEnds(t *testing.T) {
	r := serve(t, func(*Config) {})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := r.client.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err == nil {
		t.Error("the replica ended without an error")
	}
}

// TestServeFails: what can't start says so and frees its port.
func TestServeFails(t *testing.T) {
	cannot := errors.New("no device")
	for _, tc := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"configuration", func(c *Config) { c.Host = "" }, "--host is empty"},
		{"address", func(c *Config) { c.Host = "192.0.2.1" }, "(--host and --port)"},
		{"tokenizer", func(c *Config) { c.ModelPath = "/nowhere" }, "load the tokenizer of --model-path /nowhere"},
		{"rank", func(*Config) {}, "start the ranks: no device"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := Default()
			cfg.ModelPath, cfg.Port = seededModel(t), 0
			tc.change(&cfg)
			err := Serve(t.Context(), cfg, Runtime{
				Log:       slog.New(slog.NewTextHandler(io.Discard, nil)),
				StartRank: func(context.Context, rank.Config) (rank.Client, error) { return nil, cannot },
			})
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want %q in it", err, tc.want)
			}
		})
	}
}
