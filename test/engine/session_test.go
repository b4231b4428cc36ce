package engine

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestSession: the turns of a session give what one request with all their text gives, and a closed session is no more.
func TestSession(t *testing.T) {
	r := start(t, "--enable-streaming-session")
	for _, streaming := range []bool{false, true} {
		id := fmt.Sprintf("talk-%t", streaming)
		if status, text := r.post("/open_session", fmt.Sprintf(`{"session_id":%q,"capacity_of_str_len":1000,"streaming":%t}`, id, streaming)); status != http.StatusOK || decode[string](t, text) != id {
			t.Fatalf("status %d: %s", status, text)
		}
		if status, text := r.post("/open_session", fmt.Sprintf(`{"session_id":%q}`, id)); status != http.StatusBadRequest {
			t.Errorf("an id in use: status %d: %s", status, text)
		}
		const sampling = `"sampling_params":{"temperature":0,"max_new_tokens":8,"ignore_eos":true}`
		first := r.score(fmt.Sprintf(`{"text":"the old mill","session_params":{"id":%q},%s}`, id, sampling))
		_, text := r.post("/v1/tokenize", `{"prompt":"the old mill"}`)
		all := decode[struct {
			Tokens []int32 `json:"tokens"`
		}](t, text).Tokens
		all = append(append(all, first.OutputIDs...), 5, 6, 7)
		second := r.score(fmt.Sprintf(`{"input_ids":[5,6,7],"session_params":{"id":%q},%s}`, id, sampling))
		whole := r.score(fmt.Sprintf(`{"input_ids":%s,%s}`, ints(all), sampling))
		if second.Text != whole.Text {
			t.Errorf("streaming %t: the second turn says %q, one request %q", streaming, second.Text, whole.Text)
		}
		// The third turn follows what the second left, and its places begin behind that.
		before := len(all) + len(second.OutputIDs)
		all = append(append(all, second.OutputIDs...), 9, 10, 11, 12)
		const want = `"return_logprob":true,"top_logprobs_num":2,"logprob_start_len"`
		third := r.score(fmt.Sprintf(`{"input_ids":[9,10,11,12],"session_params":{"id":%q},%s,%s:1}`, id, sampling, want))
		whole = r.score(fmt.Sprintf(`{"input_ids":%s,%s,%s:%d}`, ints(all), sampling, want, before+1))
		if diff := cmp.Diff(whole, third); diff != "" || len(third.MetaInfo.Input) != 3 {
			t.Errorf("streaming %t: the third turn has %d rows of its prompt (-one request +turn)\n%s", streaming, len(third.MetaInfo.Input), diff)
		}
		if status, text := r.post("/close_session", fmt.Sprintf(`{"session_id":%q}`, id)); status != http.StatusOK {
			t.Errorf("close: status %d: %s", status, text)
		}
		status, text := r.post("/generate", fmt.Sprintf(`{"text":"a","session_params":{"id":%q},%s}`, id, sampling))
		if e := decode[completion](t, text).Error; status != http.StatusBadRequest || e == nil || e.Code != "invalid_session" || e.Param != "session_params" {
			t.Errorf("a turn of a closed session: status %d: %s", status, text)
		}
	}
	r.idle()
}

// ints writes a list of tokens as JSON.
func ints(list []int32) string {
	text := "["
	for i, id := range list {
		if i > 0 {
			text += ","
		}
		text += fmt.Sprint(id)
	}
	return text + "]"
}
