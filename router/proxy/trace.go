package proxy

import (
	"net/http"

	"github.com/sluice-dev/sluice/internal/traceparent"
)

// joinTrace makes a request that goes to two engines a part of one trace: the client's, which is handed on as it came, or a
// new one when the client sent none that is valid. The router makes no span of its own. All attempts have the same trace:
// the header is changed at most once, before the first pair gets it.
func joinTrace(h http.Header) {
	if _, ok := traceparent.FromHeader(h); !ok {
		traceparent.New().Set(h)
	}
}
