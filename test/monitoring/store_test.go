package monitoring

import (
	"context"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
)

// store is a Prometheus database with the scrapes in it.
type store struct {
	db       *tsdb.DB
	engine   *promql.Engine
	from, to time.Time
}

// newStore puts scrapes into a new database. respell changes a page before it is read, as a gateway may; target gives the
// labels that the scraper adds to an instance.
func newStore(t *testing.T, scrapes []scrape, respell func(string) string, target func(instance string) map[string]string) *store {
	t.Helper()
	db, err := tsdb.Open(t.TempDir(), nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	s := &store{
		db: db, from: scrapes[0].at, to: scrapes[len(scrapes)-1].at,
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 10_000_000, Timeout: time.Minute, LookbackDelta: 5 * time.Minute}),
	}
	for _, scrape := range scrapes {
		app := db.Appender(t.Context())
		for instance, text := range scrape.pages {
			more := target(instance)
			more["instance"], more["job"] = instance, "sglang"
			if err := eachSample(respell(text), func(series labels.Labels, value float64) error {
				b := labels.NewBuilder(series)
				for name, v := range more {
					b.Set(name, v)
				}
				_, err := app.Append(0, b.Labels(), scrape.at.UnixMilli(), value)
				return err
			}); err != nil {
				t.Fatalf("store the page of %s: %v", instance, err)
			}
		}
		if err := app.Commit(); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// eachSample reads a page as Prometheus does.
func eachSample(text string, do func(labels.Labels, float64) error) error {
	p, err := textparse.New([]byte(text), "text/plain; version=0.0.4", "", false, false, false, labels.NewSymbolTable())
	if err != nil {
		return err
	}
	for {
		entry, err := p.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		var series labels.Labels
		p.Labels(&series)
		_, _, value := p.Series()
		if err := do(series, value); err != nil {
			return err
		}
	}
}

// ask runs a query at every scrape and gives how many numbers it found; NaN is none.
func (s *store) ask(ctx context.Context, query string) (found int, err error) {
	err = s.run(ctx, query, s.from, func(_ string, points []promql.FPoint) {
		for _, point := range points {
			if !math.IsNaN(point.F) {
				found++
			}
		}
	})
	return found, err
}

// last runs a query at the last scrape and gives its numbers by their labels.
func (s *store) last(ctx context.Context, query string) (numbers map[string]string, err error) {
	numbers = map[string]string{}
	err = s.run(ctx, query, s.to, func(series string, points []promql.FPoint) { numbers[series] = round4(points[len(points)-1].F) })
	return numbers, err
}

func (s *store) run(ctx context.Context, query string, from time.Time, each func(series string, points []promql.FPoint)) error {
	q, err := s.engine.NewRangeQuery(ctx, s.db, nil, query, from, s.to, scrapeInterval)
	if err != nil {
		return err
	}
	defer q.Close()
	result := q.Exec(ctx)
	if result.Err != nil {
		return result.Err
	}
	matrix, err := result.Matrix()
	if err != nil {
		return err
	}
	for _, series := range matrix {
		each(series.Metric.String(), series.Floats)
	}
	return nil
}

// values lists the values of a label among series that match a selector.
func (s *store) values(t *testing.T, selector, label string) []string {
	t.Helper()
	matchers, err := parser.ParseMetricSelector(selector)
	if err != nil {
		t.Fatalf("selector %s: %v", selector, err)
	}
	q, err := s.db.Querier(s.from.UnixMilli(), s.to.UnixMilli())
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	list, _, err := q.LabelValues(t.Context(), label, nil, matchers...)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// underscores is what a gateway makes of a page: "_" for every ":", in the values of labels too.
func underscores(text string) string { return strings.ReplaceAll(text, ":", "_") }

func asWritten(text string) string { return text }
