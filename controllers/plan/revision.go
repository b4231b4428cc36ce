package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// revisionInput is all that an engine pod of a pool is made from. Fields with their default value are left out, so that
// a default written down and a default left out are the same revision, and so that a field added to the API later does
// not roll every engine out anew.
type revisionInput struct {
	Role   v1alpha1.Role        `json:"role"`
	Tenant string               `json:"tenant,omitempty"`
	Model  v1alpha1.ModelSpec   `json:"model"`
	Engine v1alpha1.EngineSpec  `json:"engine"`
	Shape  v1alpha1.EngineShape `json:"shape"`
	Secret string               `json:"secret,omitempty"`
}

// Revision is the hash of what the pool's pods are made from: 10 hex digits. Replicas and autoscaling have no part in
// it, and neither has the version of the operator: an operator that renders pods differently leaves running engines
// alone until their spec changes.
func Revision(pool v1alpha1.EnginePoolSpec, defaults EngineDefaults) (string, error) {
	input := revisionInput{Role: pool.Role, Tenant: pool.Tenant, Model: pool.Model, Engine: *pool.Engine.DeepCopy(), Shape: *pool.EngineShape.DeepCopy(), Secret: pool.SecretHash}
	input.Engine.Image = engineImage(pool, defaults)
	if tracing := input.Engine.Tracing; tracing != nil {
		input.Engine.Tracing = &v1alpha1.TracingSpec{Endpoint: tracing.Endpoint} // running engines are told the rest
	}
	input.Engine.ImagePullPolicy = pool.Engine.ImagePullPolicy

	parallelism := &input.Shape.Parallelism
	for _, number := range []*int32{&parallelism.Tensor, &parallelism.Pipeline, &parallelism.Data, &parallelism.Expert} {
		if *number == 1 {
			*number = 0
		}
	}
	layout, err := NewLayout(pool.EngineShape)
	if err != nil {
		return "", err
	}
	if layout.Nodes == 1 {
		input.Shape.RanksPerPod = nil
	}
	dropDefault(&input.Shape.KVCache.PageSize, defaultPageSize)
	dropDefault(&input.Shape.DrainSeconds, defaultDrainSeconds)
	if template := input.Shape.Template; template != nil {
		canonical, err := canonicalJSON(template.Raw)
		if err != nil {
			return "", fmt.Errorf("template is not a JSON object: %w", err)
		}
		input.Shape.Template = &runtime.RawExtension{Raw: canonical}
		if string(canonical) == "{}" {
			input.Shape.Template = nil
		}
	}
	text, err := json.Marshal(input)
	if err != nil {
		return "", fmt.Errorf("encode the pod's inputs: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:5]), nil
}

// SecretHash tells contents of a PD Secret apart. It does not help to guess one: those are 32 random bytes.
func SecretHash(value []byte) string {
	sum := sha256.Sum256(value)
	return hex.EncodeToString(sum[:5])
}

func dropDefault(field **int32, value int32) {
	if *field != nil && **field == value {
		*field = nil
	}
}

// canonicalJSON writes an object with sorted keys and without blanks.
func canonicalJSON(text []byte) ([]byte, error) {
	if len(text) == 0 {
		return []byte("{}"), nil
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, err
	}
	return json.Marshal(tree)
}
