package observe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	promv1 "github.com/prometheus/client_golang/api/prometheus/v1"
	commonconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// PrometheusConfig says where the Prometheus is that scrapes the engines.
type PrometheusConfig struct {
	// URL of its API, for example http://prometheus-operated.monitoring:9090; also of what answers like it.
	URL string
	// BearerTokenFile holds a token that is sent; it is read again for each request. CAFile holds the certificates that its
	// server must have one of. Both may be empty.
	BearerTokenFile string
	CAFile          string
}

// Prometheus answers what was stored of a pool.
type Prometheus struct {
	client api.Client
	query  promv1.API
}

// NewPrometheus makes a client.
func NewPrometheus(cfg PrometheusConfig) (*Prometheus, error) {
	u, err := url.Parse(cfg.URL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return nil, fmt.Errorf("--prometheus-url %q is no URL; give one, for example http://prometheus-operated.monitoring:9090", cfg.URL)
	}
	httpConfig := commonconfig.HTTPClientConfig{FollowRedirects: true, TLSConfig: commonconfig.TLSConfig{CAFile: cfg.CAFile}}
	if cfg.BearerTokenFile != "" {
		if _, err := os.Stat(cfg.BearerTokenFile); err != nil {
			return nil, fmt.Errorf("--prometheus-bearer-token-file: %w; mount the token there", err)
		}
		httpConfig.Authorization = &commonconfig.Authorization{Type: "Bearer", CredentialsFile: cfg.BearerTokenFile}
	}
	transport, err := commonconfig.NewRoundTripperFromConfig(httpConfig, "prometheus")
	if err != nil {
		return nil, fmt.Errorf("--prometheus-ca-file %s: %w", cfg.CAFile, err)
	}
	client, err := api.NewClient(api.Config{Address: cfg.URL, RoundTripper: limited{transport}})
	if err != nil {
		return nil, fmt.Errorf("--prometheus-url %q: %w", cfg.URL, err)
	}
	return &Prometheus{client: client, query: promv1.NewAPI(client)}, nil
}

// maxAnswerBytes bounds what is read of one answer.
const maxAnswerBytes = 32 << 20

// limited cuts answers that are too large, which then are no JSON.
type limited struct{ http.RoundTripper }

func (l limited) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(request)
	if err == nil {
		response.Body = http.MaxBytesReader(nil, response.Body, maxAnswerBytes)
	}
	return response, err
}

// Stored is what Prometheus has of a pool at one moment. It is a value.
type Stored struct {
	Taken time.Time // by the operator's clock
	// Err is why Prometheus gave no answer; the rest is empty then.
	Err error
	// ScrapePools says whether Prometheus told which monitors it has taken; Monitored that one of the pool's is among them.
	ScrapePools, Monitored bool
	// Up are the targets by pod, with the last error of the scrape where Prometheus tells it.
	Up map[string]StoredUp
	// Ranks are those with series, by pod.
	Ranks map[string]map[RankID]StoredRank
	// Unranked are pods with series that name no rank.
	Unranked map[string]bool
}

// StoredUp is a target.
type StoredUp struct {
	Up        bool
	LastError string
	// Down is when the operator first heard that the target is down, by its own clock; zero while it is up.
	Down time.Time
}

// StoredRank is a rank's series.
type StoredRank struct {
	Families map[string]bool
	// Labels are those of the target that a series has.
	Labels map[string]string
	// Newest is when the newest sample was scraped.
	Newest time.Time
}

// targetLabels are the labels that a monitor sets on every series.
func targetLabels() []string {
	return []string{"namespace", "tenant", "inference_service", "pool", "engine_type", "replica", "node_rank", "revision"}
}

// Ask asks what is stored of a pool. The pods of a pool are found by namespace and name, whatever their other labels are.
func (p *Prometheus) Ask(ctx context.Context, pool types.NamespacedName, role v1alpha1.Role, now time.Time) *Stored {
	s := &Stored{Taken: now, Up: map[string]StoredUp{}, Ranks: map[string]map[RankID]StoredRank{}, Unranked: map[string]bool{}}
	if err := p.ask(ctx, s, pool, role); err != nil {
		return &Stored{Taken: now, Err: err}
	}
	return s
}

func (p *Prometheus) ask(ctx context.Context, s *Stored, pool types.NamespacedName, role v1alpha1.Role) error {
	pods := fmt.Sprintf("namespace=%q,pod=~%q", pool.Namespace, regexp.QuoteMeta(pool.Name)+"-[0-9]+-[0-9]+")
	vector := func(query string) (model.Vector, error) {
		// The time of the question is the server's: its clock may be another.
		value, _, err := p.query.Query(ctx, query, time.Time{})
		if err != nil {
			return nil, stableError(err)
		}
		v, ok := value.(model.Vector)
		if !ok {
			return nil, fmt.Errorf("prometheus answers with a %s, want a vector", value.Type())
		}
		return v, nil
	}

	ups, err := vector("up{" + pods + "}")
	if err != nil {
		return err
	}
	for _, sample := range ups {
		s.Up[string(sample.Metric["pod"])] = StoredUp{Up: sample.Value == 1}
	}
	labels := strings.Join(append(targetLabels(), "pod", "tp_rank", "pp_rank", "dp_rank"), ",")
	counts, err := vector(fmt.Sprintf("count by (__name__,%s) ({__name__=~%q,%s})", labels, strings.Join(Required(role), "|"), pods))
	if err != nil {
		return err
	}
	for _, sample := range counts {
		s.addSeries(sample.Metric)
	}
	ages, err := vector(fmt.Sprintf("max by (pod,tp_rank,pp_rank,dp_rank) (timestamp(%s{%s}))", familyRunning, pods))
	if err != nil {
		return err
	}
	for _, sample := range ages {
		pod := string(sample.Metric["pod"])
		if id, ok := storedRankOf(sample.Metric); ok {
			if rank, there := s.Ranks[pod][id]; there {
				// By the operator's clock: Prometheus' own says how old the sample is.
				age := sample.Timestamp.Sub(model.TimeFromUnixNano(int64(float64(sample.Value) * 1e9)))
				rank.Newest = s.Taken.Add(-age)
				s.Ranks[pod][id] = rank
			}
		}
	}
	return p.askTargets(ctx, s, pool)
}

// addSeries takes a set of labels of one family.
func (s *Stored) addSeries(metric model.Metric) {
	pod := string(metric["pod"])
	id, ok := storedRankOf(metric)
	if !ok {
		s.Unranked[pod] = true
		return
	}
	if s.Ranks[pod] == nil {
		s.Ranks[pod] = map[RankID]StoredRank{}
	}
	rank, there := s.Ranks[pod][id]
	if !there {
		rank = StoredRank{Families: map[string]bool{}, Labels: map[string]string{}}
		for _, name := range targetLabels() {
			rank.Labels[name] = string(metric[model.LabelName(name)])
		}
	}
	rank.Families[string(metric[model.MetricNameLabel])] = true
	s.Ranks[pod][id] = rank
}

func storedRankOf(metric model.Metric) (RankID, bool) {
	return rankOf(func(name string) string { return string(metric[model.LabelName(name)]) })
}

// askTargets asks which monitors are taken and why targets are down. Not everything that answers queries knows.
func (p *Prometheus) askTargets(ctx context.Context, s *Stored, pool types.NamespacedName) error {
	var known struct {
		ScrapePools []string `json:"scrapePools"`
	}
	if found, err := p.get(ctx, "/api/v1/scrape_pools", nil, &known); err != nil || !found {
		return err
	}
	s.ScrapePools = true
	for _, kind := range []string{"serviceMonitor", "podMonitor"} {
		name := kind + "/" + pool.Namespace + "/" + pool.Name + "/0"
		if !slices.Contains(known.ScrapePools, name) {
			continue
		}
		s.Monitored = true
		var targets struct {
			ActiveTargets []struct {
				Labels    map[string]string `json:"labels"`
				LastError string            `json:"lastError"`
			} `json:"activeTargets"`
		}
		if _, err := p.get(ctx, "/api/v1/targets", url.Values{"state": {"active"}, "scrapePool": {name}}, &targets); err != nil {
			return err
		}
		for _, t := range targets.ActiveTargets {
			if up, there := s.Up[t.Labels["pod"]]; there && !up.Up {
				up.LastError = t.LastError
				s.Up[t.Labels["pod"]] = up
			}
		}
	}
	return nil
}

// get asks one endpoint; found is false where the server has none.
func (p *Prometheus) get(ctx context.Context, path string, query url.Values, into any) (found bool, err error) {
	u := p.client.URL(path, nil)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, fmt.Errorf("ask prometheus: %w", err)
	}
	response, body, err := p.client.Do(ctx, request) //nolint:bodyclose // Do has read and closed it
	if err != nil {
		return false, stableError(err)
	}
	if response.StatusCode != http.StatusOK {
		return false, nil
	}
	var answer struct {
		Data json.RawMessage `json:"data"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return false, fmt.Errorf("prometheus' answer to %s: %w", path, err)
	}
	if err := json.Unmarshal(answer.Data, into); err != nil {
		return false, fmt.Errorf("prometheus' answer to %s: %w", path, err)
	}
	return true, nil
}

// stableError says why Prometheus did not answer without what differs from attempt to attempt.
func stableError(err error) error {
	var known *promv1.Error
	switch {
	case errors.Is(err, context.Canceled):
		return context.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return errors.New("prometheus does not answer in time")
	case errors.As(err, &known):
		return fmt.Errorf("prometheus refuses: %s", known.Msg)
	}
	var at *url.Error
	if errors.As(err, &at) {
		return fmt.Errorf("prometheus cannot be reached: %w", transportError(transportOutcome(err), at.Err))
	}
	return fmt.Errorf("ask prometheus: %w", err)
}

// digest is a text that changes when a reader would see a difference, ages apart.
func (s *Stored) digest() string {
	c := *s
	c.Taken = time.Time{}
	var text strings.Builder
	fmt.Fprint(&text, c.Err, c.ScrapePools, c.Monitored, c.Up, c.Unranked)
	for _, pod := range slices.Sorted(maps.Keys(c.Ranks)) {
		for _, id := range slices.SortedFunc(maps.Keys(c.Ranks[pod]), RankID.compare) {
			r := c.Ranks[pod][id]
			fmt.Fprint(&text, pod, id, r.Families, r.Labels, s.Taken.Sub(r.Newest) > staleSample)
		}
	}
	return text.String()
}
