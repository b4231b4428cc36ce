package plan

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// What a pool remembers of its past lies in an annotation, which may not grow without bound.
const (
	maxHistory      = 10
	maxHistoryBytes = 96 << 10
)

// Past is what the engines of a pool were made from, until a change of the service replaced it.
type Past struct {
	// Until is the generation of the service that replaced it.
	Until int64 `json:"until"`
	// Time at which it was replaced, RFC 3339.
	Time string `json:"time"`

	Model  v1alpha1.ModelSpec   `json:"model"`
	Engine v1alpha1.EngineSpec  `json:"engine"`
	Shape  v1alpha1.EngineShape `json:"shape"`
}

// RecordHistory notes in an EnginePool, which is about to be written with its new spec, what its engines were made from before,
// so that the note and the change are one write. Where nothing of that changed it notes nothing. The oldest notes go first when
// there are too many.
func RecordHistory(pool *v1alpha1.EnginePool, before *v1alpha1.EnginePoolSpec, generation int64, now time.Time) error {
	past := Past{Until: generation, Time: now.UTC().Format(time.RFC3339), Model: before.Model, Engine: before.Engine, Shape: before.EngineShape}
	if past.Equal(&pool.Spec) {
		return nil
	}
	// A history that can't be read is not worth a service that does not change any more.
	history, _ := History(pool)
	history = append(history, past)
	history = history[max(0, len(history)-maxHistory):]
	text, err := json.Marshal(history)
	for ; err == nil && len(text) > maxHistoryBytes && len(history) > 0; text, err = json.Marshal(history) {
		history = history[1:]
	}
	if err != nil {
		return fmt.Errorf("encode the history: %w", err)
	}
	if pool.Annotations == nil {
		pool.Annotations = map[string]string{}
	}
	pool.Annotations[v1alpha1.AnnotationHistory] = string(text)
	return nil
}

// Equal says whether engines of a pool with that spec are made from the same. What running engines are told is no part of it.
func (p *Past) Equal(spec *v1alpha1.EnginePoolSpec) bool {
	return equality.Semantic.DeepEqual(p.Model, spec.Model) && equality.Semantic.DeepEqual(WithToldOf(p.Engine, spec.Engine), spec.Engine) &&
		equality.Semantic.DeepEqual(p.Shape, spec.EngineShape)
}

// WithToldOf gives an engine's spec with what running engines are told, the level of tracing, as in another: that needs no new
// engines, so neither a pause holds it nor does the past bring it back. Engines that trace elsewhere, or not, are other engines.
func WithToldOf(engine, other v1alpha1.EngineSpec) v1alpha1.EngineSpec {
	result := *engine.DeepCopy()
	if result.Tracing != nil && other.Tracing != nil && result.Tracing.Endpoint == other.Tracing.Endpoint {
		result.Tracing = other.Tracing.DeepCopy()
	}
	return result
}

// History gives what the engines of a pool were made from before, oldest first, Until ascending.
func History(pool *v1alpha1.EnginePool) ([]Past, error) {
	text := pool.Annotations[v1alpha1.AnnotationHistory]
	if text == "" {
		return nil, nil
	}
	var history []Past
	if err := json.Unmarshal([]byte(text), &history); err != nil {
		return nil, fmt.Errorf("annotation %s of EnginePool %s/%s: %w", v1alpha1.AnnotationHistory, pool.Namespace, pool.Name, err)
	}
	return history, nil
}
