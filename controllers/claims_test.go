package controllers_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestClaimedDevices: what pods hold by a claim of dynamic resource allocation is in the pool's cost, by its driver, once for all
// that share it.
func TestClaimedDevices(t *testing.T) {
	trial := newTrial(t)
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: trial.namespace, Name: "two"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpus", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.example.com", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 2},
		}}}},
	}
	if err := trial.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"0", "1"} {
		if claim.Status.Allocation == nil {
			claim.Status.Allocation = &resourcev1.AllocationResult{}
		}
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: "gpus", Driver: "gpu.example.com", Pool: "node", Device: "gpu-" + device})
	}
	if err := trial.Status().Update(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	trial.apply(strings.Replace(unified, "role: Unified}", `role: Unified, replicas: 2, template: {spec: {resourceClaims: [{name: devices, resourceClaimName: two}],
    containers: [{name: engine, resources: {claims: [{name: devices}]}}]}}}`, 1))
	trial.untilSettled("uni")
	for _, pod := range trial.pods("main") {
		if claims := pod.Spec.Containers[0].Resources.Claims; len(claims) != 1 || claims[0] != (corev1.ResourceClaim{Name: "devices"}) {
			t.Fatalf("the engine of %s claims %v", pod.Name, claims)
		}
		trial.kubelet.generate(pod, 100)
	}
	trial.until("the cost of two devices", func() (bool, string) {
		cost := trial.pool("uni", "main").Status.Cost
		return cost != nil && cost.Device == "gpu.example.com" && cost.Devices == 2 && cost.GeneratedTokens == 200, fmt.Sprintf("%+v", cost)
	})
}
