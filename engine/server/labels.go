package server

import (
	"encoding/json"
	"net/http"
	"slices"
)

// headerLabels reads the custom labels of an OpenAI route: a JSON object of strings in a header. What can't be read is
// logged and ignored, as a label is no reason to refuse a request.
func (s *Server) headerLabels(r *http.Request) map[string]string {
	text := r.Header.Get(s.cfg.CustomLabelsHeader)
	if text == "" || len(s.cfg.AllowedCustomLabels) == 0 {
		return nil
	}
	var labels map[string]string
	if err := json.Unmarshal([]byte(text), &labels); err != nil {
		s.log.Warn("the custom labels header is no JSON object of strings", "header", s.cfg.CustomLabelsHeader, "error", err)
		return nil
	}
	return s.allowedLabels(labels)
}

// allowedLabels drops the keys that are not allowed; the label set of a family is fixed at the start.
func (s *Server) allowedLabels(labels map[string]string) map[string]string {
	var allowed map[string]string
	for name, value := range labels {
		if !slices.Contains(s.cfg.AllowedCustomLabels, name) {
			continue
		}
		if allowed == nil {
			allowed = map[string]string{}
		}
		allowed[name] = value
	}
	return allowed
}
