// Package grace holds the pods that the operator makes against the programs that run in them: what these may take to end has
// to fit into what the pods give them.
package grace

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
	"github.com/sluice-dev/sluice/engine/server"
)

// exitMargin is what a process gets to end itself once all that it waits for is over, on a machine that is busy.
const exitMargin = 5 * time.Second

// TestDrainFitsIntoThePodsGrace: a kubelet never kills an engine that still drains.
func TestDrainFitsIntoThePodsGrace(t *testing.T) {
	for _, drain := range []*int32{nil, new(int32(0)), new(int32(1)), new(int32(60)), new(int32(3600))} {
		for _, tensor := range []int32{1, 4} {
			pool := &v1alpha1.EnginePool{ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "team-a"}}
			pool.Spec.Service, pool.Spec.Pool, pool.Spec.Role = "chat", "decode", v1alpha1.RoleDecode
			pool.Spec.Model = v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"}
			pool.Spec.DrainSeconds = drain
			pool.Spec.Parallelism.Tensor = tensor
			t.Run(fmt.Sprintf("drain %d, tensor %d", plan.DrainSeconds(pool.Spec), tensor), func(t *testing.T) {
				pod, err := plan.Pod(pool, plan.EngineDefaults{Image: "engine"}, 0, 0, 0)
				if err != nil {
					t.Fatal(err)
				}
				args := pod.Spec.Containers[0].Args
				at := slices.Index(args, "--drain-timeout")
				if at < 0 {
					t.Fatalf("no --drain-timeout in %s", strings.Join(args, " "))
				}
				seconds, err := strconv.Atoi(args[at+1])
				if err != nil {
					t.Fatal(err)
				}
				grace := time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
				if most := time.Duration(seconds)*time.Second + server.DrainOverrun + exitMargin; grace < most {
					t.Errorf("terminationGracePeriodSeconds is %v, but an engine with --drain-timeout %d may take %v: raise graceMarginSeconds of controllers/plan", grace, seconds, most)
				}
			})
		}
	}
}
