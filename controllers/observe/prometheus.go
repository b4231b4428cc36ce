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
	"strconv"
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
	// Unmonitored is since when, by the operator's clock, the pool's monitor is not among those that Prometheus has taken;
	// zero while it is, or where that is not known. It is kept over answers that do not tell. Told: some answer did.
	Unmonitored time.Time
	Told        bool
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
	// Newest is when Prometheus last tried to scrape it, by the operator's clock.
	Newest time.Time
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

	// First, so that a target that is scraped later than this answer is not one of a monitor that it lacks.
	jobs, err := p.askScrapePools(ctx, s, pool)
	if err != nil {
		return err
	}
	ups, err := vector("up{" + pods + "}")
	if err != nil {
		return err
	}
	scrapes, err := vector("timestamp(up{" + pods + "})")
	if err != nil {
		return err
	}
	s.addTargets(ups, scrapes)
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
				rank.Newest = s.timeOf(sample)
				s.Ranks[pod][id] = rank
			}
		}
	}
	return p.askTargets(ctx, s, jobs)
}

// severalScrapes is how much older than the newest scrape of a pod another one may be and still count.
const severalScrapes = time.Minute

// addTargets takes up of the pods, and when each was scraped. A pod has several series where several scrape it, two Prometheus
// behind one address for example, and while there are last samples of one that does so no more. It is up when one of those
// that scrape it finds it up.
func (s *Stored) addTargets(ups, scrapes model.Vector) {
	newest := map[string]time.Time{} // by pod
	at := map[model.Fingerprint]time.Time{}
	for _, sample := range scrapes {
		pod, scraped := string(sample.Metric["pod"]), s.timeOf(sample)
		at[sample.Metric.Fingerprint()] = scraped
		if scraped.After(newest[pod]) {
			newest[pod] = scraped
		}
	}
	for _, sample := range ups {
		pod := string(sample.Metric["pod"])
		delete(sample.Metric, model.MetricNameLabel)
		up := s.Up[pod]
		up.Newest = newest[pod]
		if newest[pod].Sub(at[sample.Metric.Fingerprint()]) <= severalScrapes {
			up.Up = up.Up || sample.Value == 1
		}
		s.Up[pod] = up
	}
}

// timeOf gives the time that a sample has as its value, by the operator's clock: Prometheus' own says how old it is.
func (s *Stored) timeOf(sample *model.Sample) time.Time {
	age := sample.Timestamp.Sub(model.TimeFromUnixNano(int64(float64(sample.Value) * 1e9)))
	return s.Taken.Add(-age)
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

// askScrapePools asks which monitors are taken, and gives the names of the scrape pools that are of the pool's monitor.
// Not everything that answers queries knows.
func (p *Prometheus) askScrapePools(ctx context.Context, s *Stored, pool types.NamespacedName) (jobs []string, err error) {
	var known struct {
		ScrapePools []string `json:"scrapePools"`
	}
	if s.ScrapePools, err = p.get(ctx, "/api/v1/scrape_pools", nil, &known); err != nil {
		return nil, err
	}
	for _, name := range known.ScrapePools {
		if ofMonitor(name, pool) {
			jobs = append(jobs, name)
		}
	}
	s.Monitored = len(jobs) > 0
	return jobs, nil
}

// ofMonitor says whether a scrape pool is of the monitor of an EnginePool: prometheus-operator names it by kind, namespace and
// name of the monitor and by the number of the endpoint.
func ofMonitor(scrapePool string, pool types.NamespacedName) bool {
	for _, kind := range []string{"serviceMonitor", "podMonitor"} {
		endpoint, ok := strings.CutPrefix(scrapePool, kind+"/"+pool.Namespace+"/"+pool.Name+"/")
		if _, err := strconv.Atoi(endpoint); ok && err == nil {
			return true
		}
	}
	return false
}

// askTargets asks why the targets of some scrape pools are down.
func (p *Prometheus) askTargets(ctx context.Context, s *Stored, jobs []string) error {
	for _, name := range jobs {
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

// get asks one endpoint; found is false where the server has none, or answers with something else.
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
		Status string          `json:"status"`
		Data   json.RawMessage `json:"data"`
	}
	// A front end may answer every path with its page.
	if isAnswer := json.Unmarshal(body, &answer) == nil && answer.Status == "success"; !isAnswer {
		return false, nil
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
		return fmt.Errorf("prometheus cannot be reached: %w", transportError("/api/v1", transportOutcome(err), at.Err))
	}
	return fmt.Errorf("ask prometheus: %w", err)
}

// digest is a text that changes when a reader would see a difference, ages apart.
func (s *Stored) digest() string {
	c := *s
	c.Taken = time.Time{}
	var text strings.Builder
	fmt.Fprint(&text, c.Err, c.ScrapePools, c.Monitored, c.Unranked)
	for _, pod := range slices.Sorted(maps.Keys(c.Up)) {
		up := c.Up[pod]
		fmt.Fprint(&text, pod, up.Up, up.LastError, up.Down, s.forgotten(up))
	}
	for _, pod := range slices.Sorted(maps.Keys(c.Ranks)) {
		for _, id := range slices.SortedFunc(maps.Keys(c.Ranks[pod]), RankID.compare) {
			r := c.Ranks[pod][id]
			fmt.Fprint(&text, pod, id, r.Families, r.Labels, s.Taken.Sub(r.Newest) > staleSample)
		}
	}
	return text.String()
}
