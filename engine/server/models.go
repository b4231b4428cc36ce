package server

import (
	"net/http"
	"strings"
)

// modelCard describes a model as OpenAI does.
type modelCard struct {
	ID          string  `json:"id"`
	Object      string  `json:"object"` // model
	Created     int64   `json:"created"`
	OwnedBy     string  `json:"owned_by"`
	Root        string  `json:"root"`
	Parent      *string `json:"parent"` // null: not an adapter
	MaxModelLen int     `json:"max_model_len"`
}

type modelList struct {
	Object string      `json:"object"` // list
	Data   []modelCard `json:"data"`
}

func (s *Server) card(e *engine) modelCard {
	name := s.cfg.ServedModelName
	return modelCard{
		ID: name, Object: "model", Created: s.unixSeconds(s.started), OwnedBy: "sluice", Root: name, MaxModelLen: e.info.ContextLength,
	}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, modelList{Object: "list", Data: []modelCard{s.card(e)}})
}

func (s *Server) model(w http.ResponseWriter, r *http.Request) {
	e, err := s.running()
	if err != nil {
		writeError(w, err)
		return
	}
	name := strings.TrimPrefix(r.URL.Path, "/v1/models/")
	if name != s.cfg.ServedModelName {
		writeError(w, modelNotFound(clip(name), s.cfg.ServedModelName))
		return
	}
	writeJSON(w, http.StatusOK, s.card(e))
}
