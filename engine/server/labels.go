package server

import (
	"encoding/json"
	"net/http"
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
