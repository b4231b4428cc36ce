package metrics

import "sync"

// DefaultLabelValues is how many values a label that clients choose may have in a family.
const DefaultLabelValues = 256

// budget bounds the label values that clients choose: custom labels, priorities, routes, methods. Values beyond it count
// under OtherLabel, and each such update is counted by its family. It is safe for concurrent use.
type budget struct {
	most    int // of distinct values in one family
	backend Backend

	mu      sync.Mutex
	refused map[*Family]CounterSeries
}

// newBudget gives a budget of most values; 0: the default.
func newBudget(b Backend, most int) *budget {
	if most <= 0 {
		most = DefaultLabelValues
	}
	return &budget{most: most, backend: b, refused: map[*Family]CounterSeries{}}
}

// watch makes the count of a family's refusals, so that it reads 0 from the start.
func (b *budget) watch(f *Family) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[f] = b.backend.Counter(labelValuesRefused, []Label{{"family", f.Name}})
}

// refuse counts an update of a family that is watched, or of several that share their labels and are told by the first,
// whose values were beyond the budget.
func (b *budget) refuse(f *Family) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[f].Add(1)
}

// vec finds series by what tells them apart. With limit entries there, further ones share one that is made with full true.
// Each time one of these is asked for, the budget counts a refusal. Finding an entry that is there allocates nothing.
type vec[K comparable, T any] struct {
	budget *budget
	family *Family // what the budget counts refusals under
	limit  int

	mu     sync.RWMutex
	byKey  map[K]T
	shared map[string]T // of those over the limit, by what tells them apart
}

func newVec[K comparable, T any](b *budget, f *Family, limit int) *vec[K, T] {
	b.watch(f)
	return &vec[K, T]{budget: b, family: f, limit: limit, byKey: map[K]T{}, shared: map[string]T{}}
}

// get gives the series of a key, made if need be. shared tells apart what has a shared entry each.
func (v *vec[K, T]) get(key K, shared string, make func(full bool) T) T {
	v.mu.RLock()
	t, ok := v.byKey[key]
	v.mu.RUnlock()
	if ok {
		return t
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if t, ok := v.byKey[key]; ok {
		return t
	}
	if len(v.byKey) < v.limit {
		t = make(false)
		v.byKey[key] = t
		return t
	}
	v.budget.refuse(v.family)
	if t, ok := v.shared[shared]; ok {
		return t
	}
	t = make(true)
	v.shared[shared] = t
	return t
}
