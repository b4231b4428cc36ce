package inferenceservice

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestUnobserved(t *testing.T) {
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name   string
		reason string
		edit   func(*step)
		after  time.Duration
		want   time.Duration
	}{
		{"just made", "the pools' controller looks soon", nil, 500 * time.Millisecond, 1500 * time.Millisecond},
		{"no pool yet", "the cache is late", func(s *step) { delete(s.pools, "chat-b") }, 0, firstStatus},
		{"pools observed", "there is something to say",
			func(s *step) { s.pools["chat-b"].Status.ObservedGeneration = 1 }, 0, 0},
		{"long ago", "a controller that does not look is no reason to say nothing", nil, firstStatus, 0},
		{"found by a later operator", "the wait is over", nil, time.Hour, 0},
		{"failed", "what is wrong is told at once", func(s *step) { s.err = errors.New("no") }, 0, 0},
		{"not the first", "a pool that was added is told of", func(s *step) { s.service.Status.ObservedGeneration = 1 }, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			service := &v1alpha1.InferenceService{ObjectMeta: metav1.ObjectMeta{Name: "chat", CreationTimestamp: metav1.NewTime(made)}}
			service.Spec.Pools = []v1alpha1.PoolSpec{{Name: "a"}, {Name: "b"}}
			s := &step{service: service, read: true, pools: map[string]*v1alpha1.EnginePool{"chat-a": {}, "chat-b": {}}}
			s.pools["chat-a"].Status.ObservedGeneration = 1
			if test.edit != nil {
				test.edit(s)
			}
			if got := s.unobserved(made.Add(test.after)); got != test.want {
				t.Errorf("%s: got %s, want %s", test.reason, got, test.want)
			}
		})
	}
}
