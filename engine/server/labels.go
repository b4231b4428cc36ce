package server

import (
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-dev/sluice/engine/metrics"
)

// headerLabels reads the custom labels of an OpenAI route: a JSON object of strings in a header, of which the allowed keys
// count. What can't be read is logged and ignored, as a label is no reason to refuse a request.
func (s *Server) headerLabels(r *http.Request) map[string]string {
	text := r.Header.Get(s.cfg.CustomLabelsHeader)
	if text == "" || len(s.cfg.AllowedCustomLabels) == 0 {
		return nil
	}
	var all map[string]any
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		s.log.Warn("the custom labels header is no JSON object", "header", s.cfg.CustomLabelsHeader, "error", err)
		return nil
	}
	var labels map[string]string
	for _, name := range s.cfg.AllowedCustomLabels {
		value, named := all[name]
		text, isText := value.(string)
		switch {
		case isText:
			if labels == nil {
				labels = map[string]string{}
			}
			labels[name] = text
		case named && value != nil:
			s.log.Warn("a label of the custom labels header is no string", "header", s.cfg.CustomLabelsHeader, "label", name)
		}
	}
	return labels
}

// labelName is what Prometheus takes as the name of a label.
var labelName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

func (c Config) checkLabels(refuse refusal) {
	check := func(flag, name string) {
		if !labelName.MatchString(name) || strings.HasPrefix(name, "__") || name == "le" {
			refuse(flag, "has the label %q: use letters, digits and underscores, no digit first, and neither le nor two underscores first", name)
		} else if metrics.Reserved(name) {
			refuse(flag, "has the label %q, which some families have themselves: choose another name", name)
		}
	}
	for name := range c.ExtraMetricLabels {
		check("extra-metric-labels", name)
	}
	const custom = "tokenizer-metrics-allowed-custom-labels"
	for i, name := range c.AllowedCustomLabels {
		_, extra := c.ExtraMetricLabels[name]
		switch {
		case slices.Contains(c.AllowedCustomLabels[:i], name):
			refuse(custom, "has the label %q twice: name it once", name)
		case extra:
			refuse(custom, "has the label %q, which --extra-metric-labels sets for all requests: name it in one of the two", name)
		case metrics.Taken(name) && !metrics.Reserved(name):
			refuse(custom, "has the label %q, which says of which engine or rank a series is, or is a request's priority: choose another name", name)
		default:
			check(custom, name)
		}
	}
	c.checkLabelsHeader(refuse)
}

// overwrittenLabels are those of --extra-metric-labels that series have already, in order. SGLang lets them win, so they may
// be there; who sets one has to know that ranks are not told apart any more.
func (c Config) overwrittenLabels() (names []string) {
	for name := range c.ExtraMetricLabels {
		if c.EnableMetrics && metrics.Taken(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// headerName is what HTTP takes as the name of a header.
var headerName = regexp.MustCompile("^[-!#$%&'*+.^_`|~0-9A-Za-z]+$")

// ownHeaders are headers that say something else to HTTP or to this engine, or that the HTTP server takes out of a request.
var ownHeaders = []string{
	"Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Cookie", "Expect", "Forwarded", "Host",
	"Keep-Alive", "Origin", "Proxy-Authenticate", "Proxy-Authorization", "Proxy-Connection", "Range", "Referer", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"User-Agent", "Via", "X-Api-Key", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Idempotency-Key", "X-Real-Ip", "X-Request-Id",
	"Traceparent", "Tracestate", routingKeyHeader, dataRankHeader,
}

// checkLabelsHeader refuses a header that no request could bring labels in.
func (c Config) checkLabelsHeader(refuse refusal) {
	const flag = "tokenizer-metrics-custom-labels-header"
	switch name := c.CustomLabelsHeader; {
	case name == "":
		refuse(flag, "is empty: name a header; the default is %s", Default().CustomLabelsHeader)
	case !headerName.MatchString(name):
		refuse(flag, "is %q, which is no name of a header: use letters, digits and -", clip(name))
	case slices.ContainsFunc(ownHeaders, func(own string) bool { return strings.EqualFold(own, name) }):
		refuse(flag, "is %q, which says something else already: choose another; the default is %s", name, Default().CustomLabelsHeader)
	}
}
