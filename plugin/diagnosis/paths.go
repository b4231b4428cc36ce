package diagnosis

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
)

// pool is the ranks and fronts of one pool.
type pool struct {
	name, role string
	ranks      []Rank
	fronts     []Front
}

func (f *Facts) pools() []pool {
	byName := map[string]*pool{}
	at := func(name, role string) *pool {
		if byName[name] == nil {
			byName[name] = &pool{name: name, role: role}
		}
		return byName[name]
	}
	for _, r := range f.Ranks {
		p := at(r.Pool, r.Role)
		p.ranks = append(p.ranks, r)
	}
	for _, front := range f.Fronts {
		p := at(front.Pool, front.Role)
		p.fronts = append(p.fronts, front)
	}
	var list []pool
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list = append(list, *byName[name])
	}
	return list
}

func (p *pool) where() string { return "pool " + p.name }

func (r Rank) where() string { return fmt.Sprintf("%s DP rank %d", r.Engine, r.DP) }

// sum adds what f gives of each rank; NaN is left out.
func (p *pool) sum(f func(Rank) float64) float64 {
	total := 0.0
	for _, r := range p.ranks {
		if x := f(r); !math.IsNaN(x) {
			total += x
		}
	}
	return total
}

// most gives the rank with the largest value; nil when no rank has a number.
func (p *pool) most(f func(Rank) float64) *Rank {
	var best *Rank
	for i := range p.ranks {
		if x := f(p.ranks[i]); !math.IsNaN(x) && (best == nil || x > f(*best)) {
			best = &p.ranks[i]
		}
	}
	return best
}

func (r Rank) fill() float64 { return r.Running / positive(r.Cap) }

func (r Rank) repeats() float64 { return 1 - r.Effective/positive(r.Computed+r.Found) }

func (r Rank) lost() float64 { return r.LostTokens / positive(r.Decoded) }

// speed is tokens per second in which the rank had something to do.
func (r Rank) speed() float64 {
	if r.Role == "Prefill" {
		return r.Computed / positive(r.Busy())
	}
	return r.Decoded / positive(r.Busy())
}

// atLeast and atMost are numbers with a bound; plain is one without.
func atLeast(what, where string, value float64, unit string, bound float64) Evidence {
	return Evidence{What: what, Where: where, Value: value, Unit: unit, Bound: "at least " + short(bound), Beyond: value >= bound}
}

func atMost(what, where string, value float64, unit string, bound float64) Evidence {
	return Evidence{What: what, Where: where, Value: value, Unit: unit, Bound: "at most " + short(bound), Beyond: value <= bound}
}

func plain(what, where string, value float64, unit string) Evidence {
	return Evidence{What: what, Where: where, Value: value, Unit: unit}
}

// beyond says whether every bound holds, so that the evidence speaks for its cause. A number that was not told holds no bound.
func beyond(list ...Evidence) bool {
	return !slices.ContainsFunc(list, func(e Evidence) bool { return e.Bound != "" && !e.Beyond })
}

// speaking makes bounds that do not hold go: where one of several is enough, the others are context.
func speaking(list ...Evidence) []Evidence {
	for i := range list {
		if !list[i].Beyond {
			list[i].Bound = ""
		}
	}
	return list
}

// waits is the first path: do requests wait, and for what?
func (p *pool) waits() (findings []Finding, seen []Evidence) {
	r := p.most(func(r Rank) float64 { return r.LeastWaiting })
	if r == nil {
		return nil, nil
	}
	at := r.where()
	queue := atLeast("requests that wait at every poll", at, r.LeastWaiting, "requests", waitsAlways)
	full := atLeast("running over its cap", at, r.fill(), "", fullBatch)
	memory := atLeast("KV memory that is locked", at, r.Usage, "", fullMemory)
	prefill := atLeast("time in which prompts are computed", at, r.PrefillShare, "", busyPrefill)
	waiting, running := plain("waiting", at, r.Waiting, "requests"), plain("running", at, r.Running, "requests")
	seen = []Evidence{queue, waiting, running, full, memory, prefill}
	prealloc := atLeast("requests that wait for pages", at, r.Prealloc, "requests", held)
	transfer := atLeast("requests that wait for KV on its way", at, r.Transfer, "requests", held)
	switch {
	case !queue.Beyond:
	case r.Role == "Decode" && beyond(transfer) && !memory.Beyond && !full.Beyond:
		findings = append(findings, Finding{Cause: TransferStall, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.0f requests wait for KV from prefill engines, and there is room for them", r.Transfer),
			Do:       "look at the prefill pool first: its queue, and what a hand-over takes (kv_transfer_latency_ms)",
			Evidence: speaking(queue, transfer, running, memory)})
	case r.Role == "Decode" && beyond(prealloc) && !full.Beyond, memory.Beyond && !full.Beyond:
		findings = append(findings, Finding{Cause: MemoryBound, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.0f requests wait for KV memory, of which %.0f %% is locked", r.Waiting, 100*r.Usage),
			Do:       "add replicas or KV memory (kvCache.maxTotalTokens), or shorten requests",
			Evidence: speaking(queue, waiting, running, memory, prealloc)})
	case full.Beyond && r.Role != "Prefill":
		findings = append(findings, Finding{Cause: QueueBound, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.1f requests wait on average while %.1f of at most %.0f run: the cap is the limit, not the step", r.Waiting, r.Running, r.Cap),
			Do:       "add replicas, or raise scheduler.maxRunningRequests (--max-running-requests) if the memory allows",
			Evidence: []Evidence{queue, waiting, full, plain("KV memory that is locked", at, r.Usage, "")}})
	case prefill.Beyond || r.Role == "Prefill" && r.Busy() >= mostlyBusy && r.Bootstrap < held:
		findings = append(findings, Finding{Cause: PrefillBound, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.1f requests wait on average while prompts are computed %.0f %% of the time", r.Waiting, 100*r.PrefillShare),
			Do:       "add prefill replicas, or raise the share of prompts that is found in the cache",
			Evidence: speaking(queue, waiting, prefill, plain("prompt tokens computed", at, r.Computed, "tokens/s"))})
	case r.Role == "Prefill" && r.Bootstrap >= held:
		findings = append(findings, Finding{Cause: TransferStall, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.0f requests wait until a decode engine takes them", r.Bootstrap),
			Do:       "look at the decode pool: it has no room, or its engines do not reach the bootstrap port",
			Evidence: []Evidence{queue, atLeast("requests that wait for a decode engine", at, r.Bootstrap, "requests", held)}})
	default:
		findings = append(findings, Finding{Cause: AdmissionHeld, Where: p.where() + ", " + at,
			Says:     fmt.Sprintf("%.1f requests wait though %.1f of %.0f run and %.0f %% of the memory is locked", r.Waiting, r.Running, r.Cap, 100*r.Usage),
			Do:       "look for grammars that compile, a pause (/continue_generation), priorities, or --schedule-conservativeness",
			Evidence: []Evidence{queue, waiting, running, plain("grammars that compile", at, r.Grammar, "requests"), plain("paused", at, r.Paused, "requests")}})
	}
	return findings, seen
}

// hits is the second path: where are prompts found, and is work done twice?
func (p *pool) hits() (findings []Finding, seen []Evidence) {
	where := p.where()
	found, slower := 0.0, 0.0
	for _, front := range p.fronts {
		for source, rate := range front.FoundBy {
			found += rate
			if source != "device" {
				slower += rate
			}
		}
	}
	computed, cached := p.sum(func(r Rank) float64 { return r.Computed }), p.sum(func(r Rank) float64 { return r.Found })
	seen = append(seen, plain("share of prompt tokens that were found", where, known(cached/positive(computed+cached)), ""))
	places := atLeast("share of them that was not on the device", where, known(slower/positive(found)), "", slowerPlaces)
	seen = append(seen, places)
	if places.Beyond {
		findings = append(findings, Finding{Cause: StorageHits, Where: where,
			Says:     fmt.Sprintf("%.0f %% of what the cache finds is not on the device", 100*places.Value),
			Do:       "give the device more KV memory, or route equal beginnings to the same engine",
			Evidence: []Evidence{places, plain("found", where, found, "tokens/s")}})
	}
	r := p.most(func(r Rank) float64 { return r.Retractions })
	if r == nil {
		return findings, seen
	}
	at := r.where()
	retracted := plain("retractions", at, r.Retractions, "1/s")
	repeats := atLeast("share of prefill that is done again", at, known(r.repeats()), "", repeated)
	tokens := atLeast("tokens lost over tokens generated", at, known(r.lost()), "", lost)
	memory := plain("KV memory that is locked", at, r.Usage, "")
	seen = append(seen, retracted, repeats, tokens)
	if r.Retractions > 0 && (repeats.Beyond || tokens.Beyond) {
		findings = append(findings, Finding{Cause: Retraction, Where: p.where() + ", " + at,
			Says: fmt.Sprintf("%.2f running requests a second lose their KV memory: %.0f %% of prefill is done again, and %.0f %% of generated tokens is lost",
				r.Retractions, 100*max(0, repeats.Value), 100*tokens.Value),
			Do:       "lower scheduler.maxRunningRequests, raise --schedule-conservativeness, or add KV memory or replicas",
			Evidence: speaking(retracted, repeats, tokens, memory, plain("waiting", at, r.Waiting, "requests"))})
	}
	return findings, seen
}

// evenness is the third path: are some ranks busier than others?
func (p *pool) evenness() (findings []Finding, seen []Evidence) {
	if len(p.ranks) < 2 {
		return nil, nil
	}
	n := float64(len(p.ranks))
	most := p.most(Rank.Requests)
	least := p.most(func(r Rank) float64 { return -r.Requests() })
	mean := p.sum(Rank.Requests) / n
	work := func(r Rank) float64 { return known(r.Decoded) + known(r.Computed) }
	busiest := p.most(work)
	meanWork := p.sum(work) / n
	enough := atLeast("requests of the busiest rank", most.where(), most.Requests(), "requests", fewRequests)
	requests := atLeast("its requests over the mean", most.where(), known(most.Requests()/positive(mean)), "", uneven)
	tokens := atLeast("its tokens over the mean", most.where(), known(work(*most)/positive(meanWork)), "", uneven)
	idle := atMost("requests of the least busy rank over the mean", least.where(), known(least.Requests()/positive(mean)), "", leftOut)
	seen = []Evidence{enough, requests, tokens, idle,
		plain("busy time", most.where(), most.Busy(), ""), plain("busy time", least.where(), least.Busy(), "")}
	// The rank with the most requests also does the most work; a slow rank has more requests and does less.
	if beyond(enough, requests, tokens, idle) && busiest.where() == most.where() {
		findings = append(findings, Finding{Cause: UnevenRouting, Where: p.where() + ", " + most.where(),
			Says: fmt.Sprintf("%s has %.1f requests while %s has %.1f: the others have nothing to do", most.where(), most.Requests(), least.where(), least.Requests()),
			Do:   "look at what pins requests: --load-balance-method, a routed_dp_rank or a routing key of clients, the router's policy",
			Evidence: []Evidence{enough, requests, tokens, idle, plain("waiting", most.where(), most.Waiting, "requests"),
				plain("idle time", least.where(), 1-least.Busy(), "")}})
	}
	return findings, seen
}

// speed is the fourth path: do tokens come slowly?
func (p *pool) speed() (findings []Finding, seen []Evidence) {
	unit, what := "tokens/s", "tokens per busy second"
	for _, r := range p.ranks {
		seen = append(seen, plain(what, r.where(), known(r.speed()), unit), plain("busy time", r.where(), r.Busy(), ""))
	}
	ranks := slices.Clone(p.ranks)
	slices.SortStableFunc(ranks, func(a, b Rank) int { return cmp.Compare(known(a.speed()), known(b.speed())) })
	if len(ranks) < 2 {
		return nil, seen
	}
	for _, r := range ranks {
		// An equal rank has no more requests to make batches of, and less or as much else to do.
		var equal *Rank
		for i, other := range ranks {
			if other.where() != r.where() && other.Requests() > 0 && other.Requests() <= equalLoad*r.Requests() && r.Computed <= 2*other.Computed+1 &&
				!math.IsNaN(other.speed()) && (equal == nil || other.speed() > equal.speed()) {
				equal = &ranks[i]
			}
		}
		if p.role == "Prefill" || equal == nil {
			continue
		}
		part := atMost("its tokens per busy second over those of "+equal.where(), r.where(), r.speed()/positive(equal.speed()), "", slow)
		busy := atLeast("busy time", r.where(), r.Busy(), "", mostlyBusy)
		if !beyond(part, busy) {
			continue
		}
		findings = append(findings, Finding{Cause: SlowRank, Where: p.where() + ", " + r.where(),
			Says: fmt.Sprintf("%s gives %.0f tokens a second with %.1f requests, and %s gives %.0f with %.1f: a step takes it %.1f times as long",
				r.where(), r.speed(), r.Requests(), equal.where(), equal.speed(), equal.Requests(), 1/part.Value),
			Do: "look at the node and the device of its pod: a throttled CPU or clock, a neighbour, a broken link; then delete the pod, and the replica is replaced",
			Evidence: []Evidence{part, busy, plain(what, r.where(), r.speed(), unit), plain(what, equal.where(), equal.speed(), unit),
				plain("CPU time per second", r.where(), known(r.CPU), ""), plain("CPU time per second", equal.where(), known(equal.CPU), "")}})
		return findings, seen
	}
	return nil, seen
}

// wayIn is the fifth path: is it before the engine?
func (p *pool) wayIn() (findings []Finding, seen []Evidence) {
	for _, front := range p.fronts {
		at := front.Engine
		inRanks, busiest := 0.0, 0.0
		for _, r := range p.ranks {
			if r.Engine == front.Engine {
				inRanks += r.Requests()
				busiest = max(busiest, r.Busy())
			}
		}
		front.BeforeFirst, front.InRanks = known(front.BeforeFirst), known(front.InRanks)
		outside := max(0, front.BeforeFirst-front.InRanks)
		stuck := atLeast("requests without an output that no rank has, on average", at, outside, "requests", held)
		over := atLeast("of all without an output", at, known(outside/positive(front.BeforeFirst)), "", mostlyIdle)
		entering := atLeast("share of them that is being tokenized", at, known(front.Tokenizing/positive(outside)), "", entry)
		busy := atMost("busy time of its busiest rank", at, busiest, "", mostlyBusy)
		mean := plain("time to tokenize a request", at, known(front.TokenizeMean), "s")
		cpu := plain("CPU of the API process over what it may use", at, known(front.CPU), "")
		ranks := plain("requests in its ranks", at, inRanks, "requests")
		seen = append(seen, stuck, over, entering, busy, mean, cpu, ranks)
		if beyond(stuck, over, entering, busy) {
			findings = append(findings, Finding{Cause: FrontEnd, Where: p.where() + ", " + at,
				Says: fmt.Sprintf("of %.1f requests without an output no rank has %.1f: the API process has them, and tokenizing one takes %.0f ms",
					front.BeforeFirst, outside, 1000*mean.Value),
				Do:       "give the API process more CPU (resources of the pool), add replicas, or let clients send shorter prompts",
				Evidence: []Evidence{stuck, over, entering, busy, mean, cpu, ranks}})
		}
		bad := atLeast("share of requests that end in faults", at, known(front.Failed/positive(front.Ended)), "", failing)
		seen = append(seen, bad, plain("refused, preempted or timed out", at, known(front.Refused), "1/s"))
		if bad.Beyond {
			findings = append(findings, Finding{Cause: Failing, Where: p.where() + ", " + at,
				Says:     fmt.Sprintf("%.0f %% of the requests end in faults of the engines", 100*bad.Value),
				Do:       "see docs/diagnosis.md, Requests end badly, and kubectl sluice logs",
				Evidence: []Evidence{bad}})
		}
	}
	return findings, seen
}

// router belongs to the fifth path.
func (r Router) wayIn() (findings []Finding, seen []Evidence) {
	at := r.Router
	waiting := atLeast("requests that wait in the router for an engine, on average", at, known(r.Waiting), "requests", held)
	added := plain("time that the router adds", at, known(r.Added), "s")
	seen = []Evidence{waiting, added, plain("requests", at, known(r.Requests), "1/s"), plain("retries", at, known(r.Retries), "1/s"),
		plain("CPU of the router over what it may use", at, known(r.CPU), "")}
	if waiting.Beyond {
		findings = append(findings, Finding{Cause: RouterWait, Where: "router, " + at,
			Says:     fmt.Sprintf("%.1f requests on average wait in the router, %.1f s each, for an engine that it may use", r.Waiting, known(r.WaitMean)),
			Do:       "see kubectl sluice status: engines that are not ready or drain, and pools without replicas",
			Evidence: []Evidence{waiting, added}})
	}
	return findings, seen
}

// known gives 0 for a number that was not told: it reaches no lower bound, and is shown as it is counted.
func known(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	return x
}
