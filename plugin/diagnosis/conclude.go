package diagnosis

import (
	"fmt"
	"math"
	"slices"
)

// order is how causes are believed when numbers speak for several: what explains the others comes first. Requests that wait may
// wait because a rank is slow, because others have nothing to do, or because the same work is done twice.
func order() []Cause {
	return []Cause{
		FrontEnd, SlowRank, UnevenRouting, Retraction, StorageHits, MemoryBound, QueueBound, PrefillBound, TransferStall, AdmissionHeld, RouterWait, Failing,
	}
}

// Conclude walks the five paths.
func Conclude(f Facts) Report {
	r := Report{Kind: "Diagnosis", Seconds: math.Round(f.Seconds*100) / 100, Also: []Cause{}, Missing: append([]string{}, f.Missing...)}
	type walk func(*pool) ([]Finding, []Evidence)
	for _, path := range []struct {
		name, anchor string
		walk         walk
	}{
		{"does it wait, or is it computed slowly?", "p99-is-worse-does-it-wait-or-is-it-computed-slowly", (*pool).waits},
		{"where are prompts found, and is work done twice?", "the-hit-rate-is-good-and-the-first-token-is-late", (*pool).hits},
		{"are some ranks busier than others?", "some-ranks-are-busier-than-others", (*pool).evenness},
		{"do tokens come slowly?", "tokens-come-slowly", (*pool).speed},
		{"is it before the engine?", "all-engines-are-slow-at-once", (*pool).wayIn},
	} {
		p := Path{Name: path.name, Anchor: path.anchor, Findings: []Finding{}, Evidence: []Evidence{}}
		for _, pool := range f.pools() {
			findings, seen := path.walk(&pool)
			p.Findings = append(p.Findings, findings...)
			p.Evidence = append(p.Evidence, seen...)
		}
		r.Paths = append(r.Paths, p)
	}
	last := &r.Paths[len(r.Paths)-1]
	for _, router := range f.Routers {
		findings, seen := router.wayIn()
		last.Findings = append(last.Findings, findings...)
		last.Evidence = append(last.Evidence, seen...)
	}
	r.conclude(f)
	r.tidy()
	return r
}

func (r *Report) conclude(f Facts) {
	for _, cause := range order() {
		for _, path := range r.Paths {
			for _, finding := range path.Findings {
				if finding.Cause != cause {
					continue
				}
				if r.Cause == "" {
					r.Cause, r.Conclusion = cause, finding
				} else if cause != r.Cause && !slices.Contains(r.Also, cause) {
					r.Also = append(r.Also, cause)
				}
			}
		}
	}
	if r.Cause != "" {
		return
	}
	requests, work, ended, told := 0.0, 0.0, 0.0, false
	for _, rank := range f.Ranks {
		requests += rank.Requests()
		work += known(rank.Decoded) + known(rank.Computed)
	}
	for _, front := range f.Fronts {
		ended += known(front.Ended)
		told = told || !math.IsNaN(front.Ended)
	}
	// Ranks count the tokens of health checks too; API processes count clients' requests alone.
	asked := requests + ended
	if !told {
		asked += work
	}
	numbers := []Evidence{plain("requests in the engines, on average", "all pools", requests, "requests"), plain("tokens computed and generated", "all pools", work, "tokens/s")}
	switch {
	case len(f.Ranks) == 0:
		r.Cause = NoData
		r.Conclusion = Finding{Says: "no engine told anything", Do: "see kubectl sluice status for what stands in the way", Evidence: []Evidence{}}
	case asked == 0:
		r.Cause = NoRequests
		r.Conclusion = Finding{Says: fmt.Sprintf("no request was there in %.0f s", r.Seconds), Do: "run it while the complaint holds, or longer (--interval)", Evidence: numbers}
	default:
		r.Cause = NothingWrong
		r.Conclusion = Finding{Says: fmt.Sprintf("%.1f requests are there on average, and no number is out of bounds", requests), Do: "look at one slow request: kubectl sluice trace RID", Evidence: numbers}
	}
	r.Conclusion.Cause, r.Conclusion.Where = r.Cause, "all pools"
}

// tidy makes numbers fit for JSON: four digits behind the point, and 0 for what was not told.
func (r *Report) tidy() {
	tidy := func(list []Evidence) {
		for i := range list {
			list[i].Value = math.Round(known(list[i].Value)*1e4) / 1e4
		}
	}
	tidy(r.Conclusion.Evidence)
	for i := range r.Paths {
		tidy(r.Paths[i].Evidence)
		for j := range r.Paths[i].Findings {
			tidy(r.Paths[i].Findings[j].Evidence)
		}
	}
}
