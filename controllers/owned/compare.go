package owned

import (
	"encoding/json"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// covers says whether every field that want sets has the same value in live. What want leaves out is the API server's
// and other people's: defaults, status, injected containers.
func covers(live, want client.Object) (bool, error) {
	liveTree, err := tree(live)
	if err != nil {
		return false, err
	}
	wantTree, err := tree(want)
	if err != nil {
		return false, err
	}
	return coversValue(liveTree, wantTree), nil
}

func tree(object client.Object) (map[string]any, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", object, err)
	}
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		return nil, fmt.Errorf("decode %T: %w", object, err)
	}
	return tree, nil
}

func coversValue(live, want any) bool {
	switch want := want.(type) {
	case nil:
		return true
	case map[string]any:
		live, ok := live.(map[string]any)
		if !ok {
			return len(want) == 0
		}
		for key, value := range want {
			if !coversValue(live[key], value) {
				return false
			}
		}
		return true
	case []any:
		live, ok := live.([]any)
		if !ok || len(live) < len(want) {
			return len(want) == 0
		}
		for i, value := range want {
			if !coversValue(counterpart(live, value, i), value) {
				return false
			}
		}
		return true
	default:
		return live == want
	}
}

// counterpart finds the item of a list that stands for want: the one of the same name, else the one in its place.
func counterpart(live []any, want any, i int) any {
	if name, ok := nameOf(want); ok {
		for _, item := range live {
			if other, ok := nameOf(item); ok && other == name {
				return item
			}
		}
	}
	return live[i]
}

func nameOf(item any) (name string, ok bool) {
	fields, ok := item.(map[string]any)
	if !ok {
		return "", false
	}
	name, ok = fields["name"].(string)
	return name, ok
}
