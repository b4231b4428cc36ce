package trail

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/sluice-dev/sluice/internal/waterfall"
)

// RouterRecord is a request in a router's /debug/requests. Times are nanoseconds.
type RouterRecord struct {
	RID          string    `json:"rid"`
	Route        string    `json:"route"`
	InFlight     bool      `json:"in_flight"`
	Stage        string    `json:"stage"`
	Status       int       `json:"status"`
	Outcome      *string   `json:"outcome"`
	Received     string    `json:"received"`
	ReceivedWall int64     `json:"received_wall_nanos"`
	Nanos        int64     `json:"nanos"`
	Stages       []Visit   `json:"stages"`
	Attempts     []Attempt `json:"attempts"`
}

// Attempt is one pair of engines that a request was sent to, or one unified engine.
type Attempt struct {
	Prefill *Engine `json:"prefill"`
	Decode  Engine  `json:"decode"`
	Room    *int64  `json:"bootstrap_room"`
	Failed  string  `json:"failed"`
	Error   string  `json:"error,omitempty"`
}

// Engine is an engine as the router knows it.
type Engine struct {
	Name string `json:"name"`
	URL  string `json:"url"`
}

// EngineRecord is a sequence in an engine's /debug/requests. Times are nanoseconds.
type EngineRecord struct {
	RID               string    `json:"rid"`
	InFlight          bool      `json:"in_flight"`
	Stage             string    `json:"stage"`
	Outcome           *string   `json:"outcome"`
	Message           string    `json:"message,omitempty"`
	ReceivedWall      int64     `json:"received_wall_nanos"`
	DPRank            *int      `json:"dp_rank"`
	Room              *int64    `json:"bootstrap_room"`
	PromptTokens      int       `json:"prompt_tokens"`
	CachedTokens      int       `json:"cached_tokens"`
	ComputedTokens    int       `json:"computed_tokens"`
	ReprocessedTokens int       `json:"reprocessed_tokens"`
	CompletionTokens  int       `json:"completion_tokens"`
	Retractions       int       `json:"retractions"`
	TTFTNanos         *int64    `json:"ttft_nanos"`
	E2ENanos          int64     `json:"e2e_nanos"`
	QueueNanos        *int64    `json:"queue_nanos"`
	API               *Timeline `json:"api_server"`
	Rank              *Timeline `json:"scheduler"`
}

// Timeline is a request in one process. Starts are after the beginning of the timeline.
type Timeline struct {
	Form      string  `json:"form"`
	StartWall int64   `json:"start_wall_nanos"`
	Nanos     int64   `json:"nanos"`
	Visits    []Visit `json:"visits"`
	Folded    int     `json:"visits_not_listed"`
	Stages    []Spent `json:"stages"`
	Laps      []Spent `json:"laps"`
}

// Visit is a visit of a stage.
type Visit struct {
	Stage string `json:"stage"`
	Start int64  `json:"start"`
	Nanos int64  `json:"nanos"`
}

// Spent is what all visits of a stage, or its laps, took together.
type Spent struct {
	Stage string `json:"stage"`
	Count int    `json:"count"`
	Nanos int64  `json:"nanos"`
}

// ReadRouter reads the record of one request.
func ReadRouter(body []byte) (RouterRecord, error) {
	var r RouterRecord
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("read the router's record: %w", err)
	}
	return r, nil
}

// ReadEngine reads the record of one request, or of a list.
func ReadEngine(body []byte) ([]EngineRecord, error) {
	var list struct {
		Requests *[]EngineRecord `json:"requests"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("read the engine's records: %w", err)
	}
	if list.Requests != nil {
		return *list.Requests, nil
	}
	var one EngineRecord
	if err := json.Unmarshal(body, &one); err != nil {
		return nil, fmt.Errorf("read the engine's record: %w", err)
	}
	return []EngineRecord{one}, nil
}

// Rooms are where the halves of a request met, of all attempts.
func (r *RouterRecord) Rooms() []int64 {
	var rooms []int64
	for _, a := range r.Attempts {
		if a.Room != nil {
			rooms = append(rooms, *a.Room)
		}
	}
	return rooms
}

// outcome says how a request ended, or where it is.
func outcome(ended *string, stage string) string {
	if ended == nil {
		return "in flight, " + waterfall.OneLine(stage)
	}
	return waterfall.OneLine(strings.TrimSpace(*ended))
}
