package main

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-dev/sluice/bench"
	"github.com/sluice-dev/sluice/internal/version"
)

// options are the flags. What is read from text is kept as text until load and target turn it into values.
type options struct {
	url, vs     string
	api, model  string
	apiKey      string
	headers     []string
	extraBody   string
	stream      bool
	ignoreEOS   bool
	temperature float64
	sendSeed    bool
	continuous  bool
	timeout     time.Duration

	requests       int
	duration       time.Duration
	rate, arrivals string
	burstiness     float64
	concurrency    int

	input, output  bench.Dist
	prompts        string
	shuffle        bool
	tokenIDs       string
	tokensPerWord  float64
	prefixRatio    float64
	prefixGroups   int
	priorities     string
	cancel         float64
	cancelMillis   bench.Dist
	cancelChunks   bench.Dist
	seed           uint64
	warmup         int
	flushCache     bool
	alternate      string
	round          int
	goodput        []string
	json           bool
	outputFile     string
	records, quiet bool
	progressEvery  time.Duration
}

func command(t terminal) *cobra.Command {
	o := options{
		input: bench.Dist{Kind: bench.Fixed, A: 128, Min: 1}, output: bench.Dist{Kind: bench.Fixed, A: 64, Min: 1},
		cancelMillis: bench.Dist{Kind: bench.Fixed, A: 500},
	}
	c := &cobra.Command{
		Use:   "sluice-bench --url http://host:port (--request-rate R | --max-concurrency N) [flags]",
		Short: "Send load to an OpenAI-compatible server and measure its answers",
		Long: "sluice-bench sends requests to any server that speaks OpenAI's API (or SGLang's /generate) and prints latencies,\n" +
			"throughput and errors. --request-rate makes an open loop: requests start by the clock, and latencies count from\n" +
			"the time when a request was due. --max-concurrency alone makes a closed loop. With --vs two servers take turns in\n" +
			"one run and are compared.\n\n" +
			"A DIST is a number, uniform:FROM,TO, normal:MEAN,SD[,MAX] or lognormal:MEAN,SD[,MAX].",
		Example: "  sluice-bench --url http://127.0.0.1:30000 --request-rate 5 --num-prompts 200 --input-len lognormal:400,300 --output-len 64\n" +
			"  sluice-bench --url http://a:30000 --vs http://b:30000 --alternate round --max-concurrency 8 --num-prompts 320",
		Args:          cobra.NoArgs,
		Version:       version.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return run(c.Context(), o, t)
		},
	}
	c.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see %s --help", err, c.CommandPath())
	})
	f := c.Flags()
	f.SortFlags = false
	f.StringVar(&o.url, "url", "", "base URL of the server")
	f.StringVar(&o.url, "base-url", "", "the same as --url")
	f.StringVar(&o.api, "api", "completions", "HTTP interface: completions, chat or generate")
	f.StringVar(&o.model, "model", "", "model to ask for; by default the first of GET /v1/models")
	f.StringVar(&o.apiKey, "api-key", "", "key for the Authorization header; by default $OPENAI_API_KEY")
	f.StringArrayVar(&o.headers, "header", nil, "header of every request, as in \"Name: value\" (repeatable)")
	f.StringVar(&o.extraBody, "extra-body", "", "JSON object whose fields go into every request")
	f.BoolVar(&o.stream, "stream", true, "stream the answers; without it there is no TTFT, ITL or TPOT")
	f.BoolVar(&o.ignoreEOS, "ignore-eos", true, "ask for answers of exactly their length (a field that vLLM, SGLang and Sluice know)")
	f.Float64Var(&o.temperature, "temperature", -1, "temperature of every request; by default the server's")
	f.BoolVar(&o.sendSeed, "send-seed", false, "send each request its own sampling seed")
	f.BoolVar(&o.continuous, "continuous-usage", false, "ask for the token count in each chunk, for an exact ITL where chunks hold several tokens")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "longest time of a request; 0: none")

	f.IntVar(&o.requests, "num-prompts", 0, "requests to send; 100 when --duration is not given either")
	f.DurationVar(&o.duration, "duration", 0, "time in which requests start")
	f.StringVar(&o.rate, "request-rate", "", "requests per second of an open loop; \"inf\" or nothing makes a closed loop")
	f.StringVar(&o.arrivals, "arrivals", "", "spacing of an open loop: poisson (default), constant, or gamma with --burstiness")
	f.Float64Var(&o.burstiness, "burstiness", 1, "shape of gamma arrivals: below 1 bursts, 1 Poisson, above 1 regular")
	f.IntVar(&o.concurrency, "max-concurrency", 0, "requests in flight: of a closed loop always, of an open loop at most")

	f.Var(&o.input, "input-len", "tokens of a prompt (DIST)")
	f.Var(&o.output, "output-len", "tokens of an answer (DIST)")
	f.StringVar(&o.prompts, "prompts", "", "JSONL file of prompts: prompt, messages or input_ids, and output_tokens; - is standard input")
	f.BoolVar(&o.shuffle, "shuffle", false, "put the prompts of the file into another order")
	f.StringVar(&o.tokenIDs, "token-ids", "", "make prompts of token ids FROM:TO instead of words, for exact lengths (not for chat)")
	f.Float64Var(&o.tokensPerWord, "tokens-per-word", 0, "tokens that the server makes of a word; 0 asks the server")
	f.Float64Var(&o.prefixRatio, "prefix-ratio", 0, "share of a prompt that its group has in common, 0 to 1")
	f.IntVar(&o.prefixGroups, "prefix-groups", 1, "groups of prompts with a common prefix")
	f.StringVar(&o.priorities, "priorities", "", "priorities with their weights, as in 0:0.9,10:0.1")
	f.Float64Var(&o.cancel, "cancel", 0, "share of requests that the client drops, 0 to 1")
	f.Var(&o.cancelMillis, "cancel-after", "milliseconds after which a request is dropped (DIST)")
	f.Var(&o.cancelChunks, "cancel-after-chunks", "chunks of output after which a request is dropped, instead of a time (DIST)")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the plan: the same seed and flags send the same requests")
	f.IntVar(&o.warmup, "warmup", 1, "requests to each server before the run, which are not counted")
	f.BoolVar(&o.flushCache, "flush-cache", false, "empty the servers' prefix caches after the warm-up (POST /flush_cache)")

	f.StringVar(&o.vs, "vs", "", "base URL of a second server to compare with: both get the same requests in turns")
	f.StringVar(&o.alternate, "alternate", "request", "turns of the two servers: request (side by side) or round (one idles while the other works)")
	f.IntVar(&o.round, "round", 32, "requests of a round")
	f.StringSliceVar(&o.goodput, "goodput", nil, "count requests that meet all of these, as in ttft=300ms,tpot=50ms,e2e=5s")

	f.BoolVar(&o.json, "json", false, "print JSON instead of the table")
	f.StringVar(&o.outputFile, "output", "", "also write the JSON to this file")
	f.BoolVar(&o.records, "records", false, "put every request's times into the JSON")
	f.BoolVar(&o.quiet, "quiet", false, "no progress")
	f.DurationVar(&o.progressEvery, "progress-interval", 5*time.Second, "time between two lines of progress where there is no terminal")
	return c
}

// load gives what the flags ask for. Corpus is filled in later.
func (o *options) load() (bench.Load, error) {
	l := bench.Load{
		Requests: o.requests, Duration: o.duration, Arrivals: bench.Arrivals(o.arrivals), Burstiness: o.burstiness,
		Concurrency: o.concurrency, Input: o.input, Output: o.output, PrefixRatio: o.prefixRatio, PrefixGroups: o.prefixGroups,
		CancelShare: o.cancel, CancelMillis: o.cancelMillis, CancelChunks: o.cancelChunks, Seed: o.seed,
	}
	if l.Requests == 0 && l.Duration == 0 {
		l.Requests = 100
	}
	if o.rate != "" && o.rate != "inf" {
		rate, err := strconv.ParseFloat(o.rate, 64)
		if err != nil || !(rate > 0) || math.IsInf(rate, 0) {
			return l, fmt.Errorf("--request-rate is %q: give requests per second above 0, or inf", o.rate)
		}
		l.Rate = rate
	}
	if o.rate == "inf" && l.Concurrency == 0 {
		if l.Requests == 0 {
			return l, fmt.Errorf("--request-rate inf starts all requests at once: give --num-prompts or --max-concurrency")
		}
		l.Concurrency = l.Requests
	}
	if l.Arrivals == "" {
		l.Arrivals = bench.Poisson
		if o.burstiness != 1 {
			l.Arrivals = bench.Gamma
		}
	}
	switch {
	case !l.Open():
		if o.arrivals != "" {
			return l, fmt.Errorf("--arrivals spaces an open loop: give --request-rate or leave it out")
		}
		l.Arrivals, l.Burstiness = "", 0
	case l.Arrivals != bench.Gamma && o.burstiness != 1:
		return l, fmt.Errorf("--burstiness shapes gamma arrivals: leave --arrivals %s out, or the burstiness", l.Arrivals)
	case l.Arrivals != bench.Gamma:
		l.Burstiness = 0
	}
	if o.priorities != "" {
		list, err := bench.ParsePriorities(o.priorities)
		if err != nil {
			return l, fmt.Errorf("--priorities: %w", err)
		}
		l.Priorities = list
	}
	if o.cancelChunks.Kind != "" && !o.stream {
		return l, fmt.Errorf("--cancel-after-chunks counts chunks: leave out --stream=false")
	}
	return l, l.Validate()
}

// target gives what the flags say about every request; the model is filled in later.
func (o *options) target() (bench.Target, error) {
	t := bench.Target{
		API: bench.API(o.api), Model: o.model, Stream: o.stream, Header: http.Header{}, IgnoreEOS: o.ignoreEOS,
		SeedSent: o.sendSeed, ContinuousUsage: o.continuous,
	}
	switch t.API {
	case bench.Completions, bench.Chat, bench.Generate:
	default:
		return t, fmt.Errorf("--api is %q: give completions, chat or generate", o.api)
	}
	if o.temperature != -1 {
		if !(o.temperature >= 0) || math.IsInf(o.temperature, 0) {
			return t, fmt.Errorf("--temperature is %v: give 0 or more", o.temperature)
		}
		t.Temperature = &o.temperature
	}
	if key := o.apiKey; key != "" || os.Getenv("OPENAI_API_KEY") != "" {
		if key == "" {
			key = os.Getenv("OPENAI_API_KEY")
		}
		t.Header.Set("Authorization", "Bearer "+key)
	}
	for _, text := range o.headers {
		name, value, err := bench.ParseHeader(text)
		if err != nil {
			return t, fmt.Errorf("--header: %w", err)
		}
		t.Header.Set(name, value)
	}
	if o.extraBody != "" {
		if err := json.Unmarshal([]byte(o.extraBody), &t.Extra); err != nil {
			return t, fmt.Errorf("--extra-body is no JSON object: %w", err)
		}
	}
	return t, nil
}

// urls gives the base URLs of the one or two servers.
func (o *options) urls() ([]string, error) {
	if o.url == "" {
		return nil, fmt.Errorf("no server: give --url http://host:port")
	}
	var list []string
	for _, one := range []struct{ flag, text string }{{"--url", o.url}, {"--vs", o.vs}} {
		if one.text == "" {
			continue
		}
		url, err := bench.ParseURL(one.text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", one.flag, err)
		}
		list = append(list, url)
	}
	return list, nil
}

// writer gives what makes the prompts, as far as it needs no server.
func (o *options) writer() (bench.Writer, error) {
	w := bench.Writer{TokensPerWord: o.tokensPerWord}
	if !(o.tokensPerWord >= 0) || math.IsInf(o.tokensPerWord, 0) {
		return w, fmt.Errorf("--tokens-per-word is %v: give a number above 0, or 0 to ask the server", o.tokensPerWord)
	}
	if o.tokenIDs == "" {
		return w, nil
	}
	from, to, ranged := strings.Cut(o.tokenIDs, ":")
	first, err1 := strconv.ParseInt(from, 10, 32)
	end, err2 := strconv.ParseInt(to, 10, 32)
	if !ranged || err1 != nil || err2 != nil || first < 0 || end <= first {
		return w, fmt.Errorf("--token-ids is %q: give FROM:TO, where TO is not included, as in 1000:30000", o.tokenIDs)
	}
	w.FromID, w.ToID = int32(first), int32(end)
	return w, nil
}

// goal reads --goodput.
func (o *options) goal() (bench.Goal, error) {
	var g bench.Goal
	for _, text := range o.goodput {
		name, value, _ := strings.Cut(text, "=")
		bound, err := time.ParseDuration(value)
		if err != nil || bound <= 0 {
			return g, fmt.Errorf("--goodput has %q: give times such as ttft=300ms,tpot=50ms,e2e=5s", text)
		}
		switch name {
		case "ttft":
			g.TTFT = bound
		case "tpot":
			g.TPOT = bound
		case "e2e":
			g.E2E = bound
		default:
			return g, fmt.Errorf("--goodput has %q: the names are ttft, tpot and e2e", text)
		}
	}
	return g, nil
}

// check names the first flag that is wrong on its own.
func (o *options) check() error {
	switch {
	case o.alternate != string(bench.ByRequest) && o.alternate != string(bench.ByRound):
		return fmt.Errorf("--alternate is %q: give request or round", o.alternate)
	case o.round < 1:
		return fmt.Errorf("--round is %d: give 1 or more", o.round)
	case o.warmup < 0:
		return fmt.Errorf("--warmup is %d: give 0 or more", o.warmup)
	case o.timeout < 0:
		return fmt.Errorf("--timeout is %v: give 0s or more", o.timeout)
	case o.progressEvery <= 0:
		return fmt.Errorf("--progress-interval is %v: give a time above 0", o.progressEvery)
	case o.shuffle && o.prompts == "":
		return fmt.Errorf("--shuffle is for --prompts: give a file or leave it out")
	case o.tokenIDs != "" && o.prompts != "":
		return fmt.Errorf("--token-ids makes prompts: leave it or --prompts out")
	case o.tokenIDs != "" && o.api == string(bench.Chat):
		return fmt.Errorf("--token-ids needs --api completions or generate: chat takes text")
	case o.continuous && !o.stream:
		return fmt.Errorf("--continuous-usage is for streams: leave it or --stream=false out")
	}
	return nil
}
