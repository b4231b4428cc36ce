package view

import (
	"fmt"
	"strings"
	"time"
)

// Tree shows services as trees: service, router and pools, replicas, ranks. wide adds pods with their nodes and every queue.
func (s *Status) Tree(now time.Time, wide bool) string {
	if len(s.Services) == 0 {
		return "No InferenceServices found.\n"
	}
	var b strings.Builder
	for i := range s.Services {
		if i > 0 {
			b.WriteByte('\n')
		}
		s.Services[i].tree(&b, now, wide)
	}
	return b.String()
}

// branch is an entry of a tree with what is below it.
type branch struct {
	text string
	sub  []branch
}

func (s *Service) tree(b *strings.Builder, now time.Time, wide bool) {
	fmt.Fprintf(b, "%s  model %s, tenant %s, namespace %s\n", Plain(s.Name), Plain(s.Model), Plain(s.Tenant), s.Namespace)
	if s.URL != "" {
		fmt.Fprintf(b, "  %s\n", s.URL)
	}
	if s.Paused {
		b.WriteString("  the roll-out is paused: kubectl sluice rollout resume " + s.Name + "\n")
	}
	if len(s.Conditions) == 0 {
		b.WriteString("  the operator has not seen it yet: is it running?\n")
	}
	var t Table
	for _, c := range s.Conditions {
		since := "?"
		if at, err := time.Parse(time.RFC3339, c.Since); err == nil {
			since = Age(now.Sub(at))
		}
		text := c.Words
		if c.Message != "" {
			text += ": " + Plain(c.Message)
		}
		t.Row("  "+c.Type, c.Status, since, text)
	}
	b.WriteString(t.String())
	list := []branch{{text: s.Router.words()}}
	for i := range s.Pools {
		list = append(list, s.Pools[i].branch(now, wide))
	}
	draw(b, "", list)
	for _, note := range s.Notes {
		fmt.Fprintf(b, "note: %s\n", Plain(note))
	}
}

func draw(b *strings.Builder, indent string, list []branch) {
	for i, entry := range list {
		mark, below := "├─ ", "│  "
		if i == len(list)-1 {
			mark, below = "└─ ", "   "
		}
		b.WriteString(indent + mark + entry.text + "\n")
		draw(b, indent+below, entry.sub)
	}
}

func (r *Router) words() string {
	if r.hidden {
		return "router  pods not listed"
	}
	return fmt.Sprintf("router  %d/%d ready", r.Ready, r.Replicas)
}

func (p *Pool) branch(now time.Time, wide bool) branch {
	text := fmt.Sprintf("%s  %s, %d/%d ready", p.Name, p.Role, p.Ready, p.Allocated)
	if p.Demand != p.Allocated {
		text += fmt.Sprintf(" (%d asked for)", p.Demand)
	}
	if p.Updated < p.Replicas-p.Draining {
		text += fmt.Sprintf(", %d of revision %s", p.Updated, p.Revision)
	} else if wide && p.Revision != "" {
		text += ", revision " + p.Revision
	}
	if p.Draining > 0 {
		text += fmt.Sprintf(", %d draining", p.Draining)
	}
	if p.Load.Ranks > 0 {
		text += "  " + p.Load.words(wide)
	}
	if p.Load.Ranks < p.Load.Expected {
		text += fmt.Sprintf("  (%d of %d ranks answered)", p.Load.Ranks, p.Load.Expected)
	}
	if p.LoadSource == fromStatus {
		text += "  (from the status" + since(now, p.LoadAsOf) + ")"
	}
	entry := branch{text: text}
	for i := range p.Members {
		entry.sub = append(entry.sub, p.Members[i].branch(wide))
	}
	switch {
	case len(p.Members) > 0:
	case p.Replicas > 0:
		entry.sub = append(entry.sub, branch{text: "pods not listed"})
	default:
		entry.sub = append(entry.sub, branch{text: "no replica"})
	}
	return entry
}

// since says how long ago an RFC 3339 time was; nothing when there is none.
func since(now time.Time, at string) string {
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return ""
	}
	return ", seen " + Age(now.Sub(t)) + " ago"
}

func (r *Replica) branch(wide bool) branch {
	text := fmt.Sprintf("replica %d  %s", r.Ordinal, r.State)
	if r.Detail != "" {
		text += ": " + Plain(r.Detail)
	}
	if !r.Updated {
		text += ", older revision " + r.Revision
	}
	entry := branch{}
	for _, pod := range r.Pods {
		switch {
		case wide:
			entry.sub = append(entry.sub, branch{text: fmt.Sprintf("pod %s  node %s, %s, %d failures before", pod.Name, orDash(pod.Node), orDash(pod.IP), pod.Restarts)})
		case pod.NodeRank == 0:
			text += "  " + pod.Name
		}
	}
	if r.Note != "" {
		text += "  (" + Plain(r.Note) + ")"
	}
	entry.text = text
	for _, rank := range r.Ranks {
		if rank.Load == nil {
			continue
		}
		entry.sub = append(entry.sub, branch{text: rank.name() + "  " + rank.Load.words(wide)})
	}
	return entry
}

func (r *Rank) name() string {
	if r.Rank == nil {
		return fmt.Sprintf("DP rank %d", r.DP)
	}
	if r.DP > 0 {
		return fmt.Sprintf("DP %d rank %d", r.DP, *r.Rank)
	}
	return fmt.Sprintf("rank %d", *r.Rank)
}

// words shows a load as a line.
func (l *Load) words(wide bool) string {
	text := fmt.Sprintf("running %d, waiting %d, KV %s, utilization %s, %s tokens/s", l.Running, l.Waiting, ratio(l.TokenUsage), ratio(l.Utilization), rate(l.Throughput))
	if wide {
		text += fmt.Sprintf(", hits %s, %d of %d tokens", ratio(l.CacheHitRate), l.UsedTokens, l.TokenCapacity)
	}
	for _, q := range l.Queues.list() {
		if q.n > 0 && (wide || q.name != "queued") {
			text += fmt.Sprintf(", %s %d", q.name, q.n)
		}
	}
	return text
}

type queue struct {
	name string
	n    int64
}

func (q *Queues) list() []queue {
	return []queue{
		{"queued", q.Waiting}, {"grammar", q.Grammar}, {"paused", q.Paused}, {"retracted", q.Retracted}, {"bootstrap", q.PrefillBootstrap},
		{"inflight", q.PrefillInflight}, {"prealloc", q.DecodePrealloc}, {"transfer", q.DecodeTransfer},
	}
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
