package disagg

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/sluice-dev/sluice/engine/parallel"
)

// maxRooms is how many rooms' replicas the bootstrap server keeps in mind; the oldest go first.
const maxRooms = 1 << 16

// validate refuses an answer that does not name every rank of the replica.
func (r replicaRoute) validate() error {
	if _, err := parallel.At(0, r.AttnTPSize, r.PPSize); err != nil {
		return fmt.Errorf("attn_tp_size is %d and pp_size %d, not those of a replica", r.AttnTPSize, r.PPSize)
	}
	if len(r.Ranks) != r.AttnTPSize*r.PPSize {
		return fmt.Errorf("%d ranks of a replica of %d by %d", len(r.Ranks), r.AttnTPSize, r.PPSize)
	}
	for i, m := range r.Ranks {
		if m.PPRank*r.AttnTPSize+m.AttnTPRank != i || m.AttnTPRank < 0 || m.AttnTPRank >= r.AttnTPSize {
			return fmt.Errorf("rank %d has attn_tp_rank %d and pp_rank %d", i, m.AttnTPRank, m.PPRank)
		}
		if m.RankIP == "" || m.RankPort < 1 || m.RankPort > 65535 {
			return fmt.Errorf("rank_ip %.64q and rank_port %d are not an address", m.RankIP, m.RankPort)
		}
	}
	return nil
}

// Assign says which DP rank computes a room's prompt, on engines whose rooms do not say that themselves. Decode ranks that
// ask for the room before wait for it.
func (b *Bootstrap) Assign(room int64, dpRank int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.rooms[room]; !known {
		b.order = append(b.order, room)
	}
	b.rooms[room] = dpRank
	for len(b.order) > maxRooms {
		delete(b.rooms, b.order[0])
		b.order = b.order[1:]
	}
}

// dpRankLocked gives the replica of a room; unknown says that it may become known.
func (b *Bootstrap) dpRankLocked(room int64) (dp int, unknown bool) {
	size := int64(max(b.last.AttnDPSize, b.last.SystemDPSize))
	if dp, assigned := b.rooms[room]; assigned {
		return dp, false
	}
	switch {
	case size == 1:
		return 0, false
	case b.last.LoadBalanceMethod == FollowRoom:
		return int((room%size + size) % size), false
	default:
		return 0, true
	}
}

// replica answers GET /ranks?bootstrap_room=: 404 until all ranks of the replica have registered, 425 until it is known
// which replica the room belongs to.
func (b *Bootstrap) replica(w http.ResponseWriter, r *http.Request) {
	room, err := strconv.ParseInt(r.URL.Query().Get("bootstrap_room"), 10, 64)
	if err != nil {
		http.Error(w, "ranks: query parameter bootstrap_room: want an integer", http.StatusBadRequest)
		return
	}
	answer, status, err := b.ranksOf(room)
	if err != nil {
		http.Error(w, "ranks: "+err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // the client went
}

func (b *Bootstrap) ranksOf(room int64) (replicaRoute, int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last == nil {
		return replicaRoute{}, http.StatusNotFound, errors.New("no prefill rank has registered yet")
	}
	dp, unknown := b.dpRankLocked(room)
	if unknown {
		return replicaRoute{}, http.StatusTooEarly, fmt.Errorf("the DP rank of room %d is not known yet", room)
	}
	answer := replicaRoute{AttnTPSize: b.last.AttnTPSize, PPSize: b.last.PPSize, DPRank: dp}
	for pp := range answer.PPSize {
		for tp := range answer.AttnTPSize {
			reg, known := b.ranks[rankKey{dp: dp, tp: tp, pp: pp}]
			if !known || reg.AttnTPSize != answer.AttnTPSize || reg.PPSize != answer.PPSize {
				return replicaRoute{}, http.StatusNotFound, fmt.Errorf("prefill rank dp=%d tp=%d pp=%d has not registered", dp, tp, pp)
			}
			answer.Ranks = append(answer.Ranks, memberRoute{
				AttnTPRank: tp, PPRank: pp, rankRoute: rankRoute{RankIP: reg.RankIP, RankPort: reg.RankPort, Incarnation: reg.Incarnation},
			})
		}
	}
	return answer, 0, nil
}

// registerRoom is Assign over HTTP, signed as a rank's registration.
func (b *Bootstrap) registerRoom(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRegistrationBytes))
	if err != nil {
		http.Error(w, fmt.Sprintf("room: read body: %v (at most %d bytes)", err, maxRegistrationBytes), http.StatusBadRequest)
		return
	}
	if err := b.authorize(r, body); err != nil {
		http.Error(w, "room: "+err.Error(), http.StatusForbidden)
		return
	}
	var said struct {
		Room   *int64 `json:"bootstrap_room"`
		DPRank *int   `json:"dp_rank"`
	}
	if err := json.Unmarshal(body, &said); err != nil {
		http.Error(w, "room: "+err.Error(), http.StatusBadRequest)
		return
	}
	if said.Room == nil || said.DPRank == nil || *said.DPRank < 0 || *said.DPRank >= maxRanks {
		http.Error(w, fmt.Sprintf("room: want bootstrap_room and dp_rank, 0 to %d", maxRanks-1), http.StatusBadRequest)
		return
	}
	b.Assign(*said.Room, *said.DPRank)
	io.WriteString(w, "OK") //nolint:errcheck // the client went
}

// queryRooms answers which of the rooms have which DP rank; rooms that are not known are left out.
func (b *Bootstrap) queryRooms(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Rooms []int64 `json:"bootstrap_rooms"`
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxAnswerBytes)).Decode(&asked); err != nil {
		http.Error(w, "rooms: "+err.Error(), http.StatusBadRequest)
		return
	}
	answer := map[string]int{}
	b.mu.Lock()
	for _, room := range asked.Rooms {
		if b.last == nil {
			break
		}
		if dp, unknown := b.dpRankLocked(room); !unknown {
			answer[strconv.FormatInt(room, 10)] = dp
		}
	}
	b.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(answer) //nolint:errcheck // the client went
}
