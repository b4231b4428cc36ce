package monitoring

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// digest tells contents apart; zero is that of nothing.
type digest [sha256.Size]byte

// digestOf is that of fields as JSON, whose keys are sorted.
func digestOf(fields map[string]any) (digest, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return digest{}, err
	}
	return sha256.Sum256(text), nil
}

// contentField holds, in an object that was stripped, the digest of what it had.
const contentField = "sluice-content"

// strip makes an object of a watch small before it is kept: everything but its metadata becomes a digest. It may be called
// again with what it gave.
func strip(event any) (any, error) {
	live, ok := event.(*unstructured.Unstructured)
	if !ok {
		return event, nil
	}
	content, err := contentOf(live)
	if err != nil {
		return nil, fmt.Errorf("strip %s %s: %w", live.GetKind(), live.GetName(), err)
	}
	live.SetManagedFields(nil)
	live.Object = map[string]any{
		"apiVersion": live.GetAPIVersion(), "kind": live.GetKind(), "metadata": live.Object["metadata"], contentField: hex.EncodeToString(content[:]),
	}
	return live, nil
}

// contentOf is the digest of what somebody wants of an object: not its metadata, and not the status, which is another's.
func contentOf(live *unstructured.Unstructured) (sum digest, err error) {
	if text, ok := live.Object[contentField].(string); ok {
		if n, err := hex.Decode(sum[:], []byte(text)); err != nil || n != len(sum) {
			return digest{}, fmt.Errorf("%s has %q, which is no digest", contentField, text)
		}
		return sum, nil
	}
	fields := make(map[string]any, len(live.Object))
	for name, value := range live.Object {
		switch name {
		case "apiVersion", "kind", "metadata", "status":
		default:
			fields[name] = value
		}
	}
	return digestOf(fields)
}

// sighting is an object as a watch, or the answer to a write, tells of it.
type sighting struct {
	live    *unstructured.Unstructured
	gone    bool // deleted, or without the operator's label
	content digest
}

func sight(live *unstructured.Unstructured, gone bool) (sighting, error) {
	content, err := contentOf(live)
	return sighting{live, gone, content}, err
}
