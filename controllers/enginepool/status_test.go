package enginepool

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/observe"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// TestDecisionSurvivesAConflict: the autoscaler writes the pool at the moment at which the status is written. The actions
// are done and will not be planned again, so the decision must not go with the failed write.
func TestDecisionSurvivesAConflict(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "chat-decode"}}
	conflicts := 1
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(pool).WithStatusSubresource(pool).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, obj client.Object, opts ...client.SubResourceUpdateOption) error {
			if conflicts > 0 {
				conflicts--
				return apierrors.NewConflict(schema.GroupResource{Resource: "enginepools"}, obj.GetName(), nil)
			}
			return c.SubResource(sub).Update(ctx, obj, opts...)
		},
	}).Build()
	clk := clocktesting.NewFakePassiveClock(time.Unix(1_800_000_000, 0))
	r := New(Config{Client: c, Live: c, Recorder: events.NewFakeRecorder(10), Samples: observe.NewStore(clk, time.Second), Clock: clk})
	write := func(done ...plan.Action) error {
		now := &v1alpha1.EnginePool{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), now); err != nil {
			t.Fatal(err)
		}
		_, err := r.writeStatus(t.Context(), &step{pool: now, read: true, done: done})
		return err
	}
	if err := write(plan.Action{Kind: plan.CreateReplica, Cause: plan.CauseReplace, Reason: "replica 0 failed: replace it"}); !apierrors.IsConflict(err) {
		t.Fatalf("the first write: %v, want a conflict", err)
	}
	clk.SetTime(clk.Now().Add(time.Minute))
	if err := write(); err != nil {
		t.Fatal(err)
	}
	got := &v1alpha1.EnginePool{}
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(pool), got); err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.Decision{Time: metav1.NewTime(time.Unix(1_800_000_000, 0)), Action: "Replace", Reason: "replica 0 failed: replace it"}
	if diff := cmp.Diff(want, got.Status.LastDecision); diff != "" {
		t.Errorf("the last decision (-want +got):\n%s", diff)
	}
	if len(r.unwritten) != 0 {
		t.Errorf("%d decisions are still kept although they were written", len(r.unwritten))
	}
}
