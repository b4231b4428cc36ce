package disagg

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestBootstrapServer(t *testing.T) {
	secret := []byte("k")
	b := NewBootstrap(BootstrapConfig{Secret: secret})
	do := func(method, target, body, signature string) (int, string) {
		req := httptest.NewRequest(method, target, strings.NewReader(body))
		if signature != "" {
			req.Header.Set(signatureHeader, signature)
		}
		w := httptest.NewRecorder()
		b.ServeHTTP(w, req)
		return w.Code, strings.TrimSpace(w.Body.String())
	}
	reg := registration{
		AttnTPSize: 2, AttnTPRank: 1, AttnCPSize: 1, AttnDPSize: 1, PPSize: 1, SystemDPSize: 1, RankIP: "10.0.0.7", RankPort: 4000,
		PageSize: 16, KVCacheDType: "float32", LoadBalanceMethod: "follow_bootstrap_room", Incarnation: "a", StartedWallNanos: 10,
	}
	put := func(r registration) (int, string) {
		body := mustJSON(r)
		return do(http.MethodPut, "/route", string(body), sign(secret, body))
	}
	older, newer, bad := reg, reg, reg
	older.StartedWallNanos, older.Incarnation = 9, "z"
	newer.StartedWallNanos, newer.Incarnation = 11, "b"
	bad.RankPort = 0
	type answer struct {
		Status int
		Body   string
	}
	got := map[string]answer{}
	note := func(name string) func(int, string) {
		return func(status int, body string) { got[name] = answer{status, body} }
	}
	const all = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"
	const one = "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1&target_pp_rank=0"
	note("01 empty, all")(do("GET", all, "", ""))
	note("02 empty, one")(do("GET", one, "", ""))
	note("03 unsigned")(do("PUT", "/route", string(mustJSON(reg)), ""))
	note("04 wrongly signed")(do("PUT", "/route", string(mustJSON(reg)), sign([]byte("other"), mustJSON(reg))))
	note("05 register")(put(reg))
	note("06 one")(do("GET", one, "", ""))
	note("07 all")(do("GET", all, "", ""))
	note("08 older run")(put(older))
	note("09 newer run")(put(newer))
	note("10 one")(do("GET", one, "", ""))
	note("11 parameter missing")(do("GET", "/route?prefill_dp_rank=0&prefill_cp_rank=0&target_tp_rank=1", "", ""))
	note("12 bad port")(put(bad))
	note("13 health")(do("GET", "/health", "", ""))
	note("14 not JSON")(do("PUT", "/route", "{", sign(secret, []byte("{"))))
	want := map[string]answer{
		"01 empty, all":        {404, "route: no prefill rank has registered yet"},
		"02 empty, one":        {404, "route: prefill rank dp=0 cp=0 tp=1 pp=0 has not registered"},
		"03 unsigned":          {403, "registration: X-Sluice-Signature does not fit the body: " + errWrongSecret.Error()},
		"04 wrongly signed":    {403, "registration: X-Sluice-Signature does not fit the body: " + errWrongSecret.Error()},
		"05 register":          {200, "OK"},
		"06 one":               {200, `{"rank_ip":"10.0.0.7","rank_port":4000,"incarnation":"a"}`},
		"07 all":               {200, `{"attn_tp_size":2,"attn_cp_size":1,"dp_size":1,"pp_size":1,"page_size":16,"kv_cache_dtype":"float32","follow_bootstrap_room":true}`},
		"08 older run":         {409, `registration: a newer run of this rank is registered (incarnation "a")`},
		"09 newer run":         {200, "OK"},
		"10 one":               {200, `{"rank_ip":"10.0.0.7","rank_port":4000,"incarnation":"b"}`},
		"11 parameter missing": {400, "route: query parameter target_pp_rank: want an integer, all four of prefill_dp_rank, prefill_cp_rank, target_tp_rank and target_pp_rank are needed"},
		"12 bad port":          {400, "registration: rank_port is 0, want 1 to 65535"},
		"13 health":            {200, "OK"},
		"14 not JSON":          {400, "registration: unexpected end of JSON input"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("answers (-want +got):\n%s", d)
	}
}

func TestRegistrationRetries(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close() // nothing listens yet
	retried := make(chan struct{})
	var once sync.Once
	p, err := NewPrefill(Config{Listen: "127.0.0.1:0", Bootstrap: addr, Listener: func(e Event) {
		if e.Kind == EventRegisterRetry {
			once.Do(func() { close(retried) })
		}
	}}, testLayout, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	waitFor(t, "a retry", retried)
	ln, err = net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	srv := &httptest.Server{Listener: ln, Config: &http.Server{Handler: NewBootstrap(BootstrapConfig{})}}
	srv.Start()
	defer srv.Close()
	waitFor(t, "registration", p.Registered())
}
