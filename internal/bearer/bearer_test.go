package bearer

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestHas(t *testing.T) {
	for _, c := range []struct {
		name, header, key string
		want              bool
	}{
		{"no key is needed", "", "", true},
		{"nor looked at", "Bearer x", "", true},
		{"none is given", "", "k", false},
		{"the right one", "Bearer k", "k", true},
		{"the scheme has no case", "bEARER k", "k", true},
		{"another one", "Bearer K", "k", false},
		{"one that begins so", "Bearer kk", "k", false},
		{"another scheme", "Basic k", "k", false},
		{"no scheme", "k", "k", false},
		{"a space too many", "Bearer  k", "k", false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		if c.header != "" {
			r.Header.Set("Authorization", c.header)
		}
		if got := Has(r, c.key); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
