package observe

import (
	"cmp"
	"strconv"
)

// RankID is the place of a rank in its replica, as the engine labels its series.
type RankID struct{ DP, PP, TP int }

// String gives the DP rank, and the others where they are not 0: "1", "0 pp_rank 2", "0 pp_rank 1 tp_rank 3".
func (r RankID) String() string {
	text := strconv.Itoa(r.DP)
	if r.PP != 0 {
		text += " pp_rank " + strconv.Itoa(r.PP)
	}
	if r.TP != 0 {
		text += " tp_rank " + strconv.Itoa(r.TP)
	}
	return text
}

func (r RankID) compare(o RankID) int {
	return cmp.Or(cmp.Compare(r.DP, o.DP), cmp.Compare(r.PP, o.PP), cmp.Compare(r.TP, o.TP))
}

// rankOf reads the labels of a series; false when it is of no rank. A replica without DP ranks has no such label.
func rankOf(label func(name string) string) (rank RankID, ok bool) {
	for _, part := range []struct {
		name string
		to   *int
	}{{"tp_rank", &rank.TP}, {"pp_rank", &rank.PP}, {"dp_rank", &rank.DP}} {
		text := label(part.name)
		if text == "" && part.name == "dp_rank" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return RankID{}, false
		}
		*part.to = n
	}
	return rank, true
}
