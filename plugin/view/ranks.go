package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Ranks is the document of `ranks`: one row a rank.
type Ranks struct {
	Kind string    `json:"kind"` // "Ranks"
	Time string    `json:"time"`
	Rows []RankRow `json:"ranks"`
}

// RankRow is one rank with where it is.
type RankRow struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	Pool      string `json:"pool"`
	Role      string `json:"role"`
	Replica   int32  `json:"replica"`
	State     string `json:"state"` // of the replica
	Rank
	Node string `json:"node"`
	Note string `json:"note"`
}

// NewRanks lists the ranks of a status.
func NewRanks(s *Status) Ranks {
	list := Ranks{Kind: "Ranks", Time: s.Time, Rows: []RankRow{}}
	for _, service := range s.Services {
		for _, pool := range service.Pools {
			for _, replica := range pool.Members {
				for _, rank := range replica.Ranks {
					row := RankRow{Namespace: service.Namespace, Service: service.Name, Pool: pool.Name, Role: pool.Role, Replica: replica.Ordinal, State: replica.State, Rank: rank, Note: replica.Note}
					for _, pod := range replica.Pods {
						if pod.Name == rank.Pod {
							row.Node = pod.Node
						}
					}
					list.Rows = append(list.Rows, row)
				}
			}
		}
	}
	return list
}

// Table shows the ranks; wide adds places and queues.
func (r *Ranks) Table(wide bool) string {
	if len(r.Rows) == 0 {
		return "No ranks found.\n"
	}
	var t Table
	header := []string{"POOL", "REPLICA", "RANK", "TP", "PP", "DP", "STATE", "RUNNING", "WAITING", "KV", "UTILIZATION", "TOKENS/S", "HITS"}
	if wide {
		header = append(header, "EP", "TOKENS", "GRAMMAR", "RETRACTED", "BOOTSTRAP", "INFLIGHT", "PREALLOC", "TRANSFER", "POD", "NODE", "NOTE")
	}
	t.Row(header...)
	for _, row := range r.Rows {
		rank := "-"
		if row.Rank.Rank != nil {
			rank = strconv.Itoa(int(*row.Rank.Rank))
		}
		cells := []string{row.Pool, n32(row.Replica), rank, n32(row.TP), n32(row.PP), n32(row.DP), row.State}
		l := row.Load
		if l == nil {
			cells = append(cells, "-", "-", "-", "-", "-", "-")
		} else {
			cells = append(cells, n64(l.Running), n64(l.Waiting), ratio(l.TokenUsage), ratio(l.Utilization), rate(l.Throughput), ratio(l.CacheHitRate))
		}
		if wide {
			cells = append(cells, n32(row.MoEEP))
			if l == nil {
				cells = append(cells, "-", "-", "-", "-", "-", "-", "-")
			} else {
				q := l.Queues
				cells = append(cells, fmt.Sprintf("%d/%d", l.UsedTokens, l.TokenCapacity), n64(q.Grammar), n64(q.Retracted), n64(q.PrefillBootstrap),
					n64(q.PrefillInflight), n64(q.DecodePrealloc), n64(q.DecodeTransfer))
			}
			cells = append(cells, row.Pod, orDash(row.Node), Plain(row.Note))
		}
		t.Row(cells...)
	}
	return t.String()
}

func n32(n int32) string { return strconv.Itoa(int(n)) }
func n64(n int64) string { return strconv.FormatInt(n, 10) }

// SortKeys are what rows of `top` may be sorted by; the first is the default.
func SortKeys() []string {
	return []string{"name", "running", "waiting", "kv", "utilization", "tokens"}
}

// Top shows pools, or ranks when byRank, as a table sorted by one of SortKeys: numbers descend, absent ones come last.
func (s *Status) Top(by string, byRank, namespaces bool) string {
	type line struct {
		cells []string
		value float64
	}
	var lines []line
	add := func(name []string, l *Load) {
		cells := append([]string{}, name...)
		if l == nil || l.Ranks == 0 {
			cells = append(cells, "-", "-", "-", "-", "-", "-", "-")
		} else {
			cells = append(cells, n64(l.Running), n64(l.Waiting), ratio(l.TokenUsage), ratio(l.Utilization), rate(l.Throughput), ratio(l.CacheHitRate), n64(l.Queues.Retracted))
		}
		lines = append(lines, line{cells, sortValue(l, by)})
	}
	for _, service := range s.Services {
		for i := range service.Pools {
			pool := &service.Pools[i]
			name := []string{service.Name, pool.Name, pool.Role, fmt.Sprintf("%d/%d", pool.Ready, pool.Allocated)}
			if namespaces {
				name = append([]string{service.Namespace}, name...)
			}
			if !byRank {
				add(name, &pool.Load)
				continue
			}
			for _, member := range pool.Members {
				for _, rank := range member.Ranks {
					if rank.Leader {
						add(append(slices.Clone(name), n32(member.Ordinal), rank.name()), rank.Load)
					}
				}
			}
		}
	}
	if by != "" && by != SortKeys()[0] {
		slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(b.value, a.value) })
	}
	header := []string{"SERVICE", "POOL", "ROLE", "READY"}
	if namespaces {
		header = append([]string{"NAMESPACE"}, header...)
	}
	if byRank {
		header = append(header, "REPLICA", "RANK")
	}
	var t Table
	t.Row(append(header, "RUNNING", "WAITING", "KV", "UTILIZATION", "TOKENS/S", "HITS", "RETRACTED")...)
	for _, l := range lines {
		t.Row(l.cells...)
	}
	text := t.String()
	for _, service := range s.Services {
		for _, note := range service.Notes {
			text += "note: " + Plain(note) + "\n"
		}
	}
	return text
}

// sortValue is what a row is sorted by; -1 when it has no such number.
func sortValue(l *Load, by string) float64 {
	if l == nil || l.Ranks == 0 {
		return -1
	}
	of := func(x *float64) float64 {
		if x == nil {
			return -1
		}
		return *x
	}
	switch strings.ToLower(by) {
	case "running":
		return float64(l.Running)
	case "waiting":
		return float64(l.Waiting)
	case "kv":
		return of(l.TokenUsage)
	case "utilization":
		return of(l.Utilization)
	case "tokens":
		return of(l.Throughput)
	default:
		return 0
	}
}
