package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestDevices(t *testing.T) {
	for _, test := range []struct {
		name, reason string
		requests     corev1.ResourceList
		layout       string
		kind         string
		count        int64
	}{
		{"processors alone", "a rank each", corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), "hugepages-2Mi": resource.MustParse("1Gi")}, "", "rank", 1},
		{"ranks", "those of the pod, not of the replica", nil, "tensor=4,pipeline=1,data=2,nodes=2", "rank", 4},
		{"GPUs", "what is asked for counts, however many ranks there are", corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}, "tensor=2,pipeline=1,data=1,nodes=1", "nvidia.com/gpu", 4},
		{"beside a network card", "it is no processor", corev1.ResourceList{"a.example/rdma": resource.MustParse("1"), "amd.com/gpu": resource.MustParse("2")}, "", "amd.com/gpu", 2},
		{"a part of one", "it counts as one of its kind", corev1.ResourceList{"nvidia.com/mig-1g.10gb": resource.MustParse("1")}, "", "nvidia.com/mig-1g.10gb", 1},
		{"of no known kind", "a device plugin's resource is a device", corev1.ResourceList{"z.example/chip": resource.MustParse("3")}, "", "z.example/chip", 3},
		{"Kubernetes' own", "it is no device", corev1.ResourceList{"attachable.kubernetes.io/volumes": resource.MustParse("3")}, "", "rank", 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "side", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"x.example/gpu": resource.MustParse("9")}}},
				{Name: EngineContainer, Resources: corev1.ResourceRequirements{Requests: test.requests}},
			}}}
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationLayout, test.layout)
			if kind, count := Devices(pod, nil); kind != test.kind || count != test.count {
				t.Errorf("%s: %d of %s, want %d of %s", test.reason, count, kind, test.count, test.kind)
			}
		})
	}
}

// TestClaims: devices that pods claim rather than request.
func TestClaims(t *testing.T) {
	result := func(request, driver string, admin bool) resourcev1.DeviceRequestAllocationResult {
		return resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driver, AdminAccess: new(admin)}
	}
	object := &resourcev1.ResourceClaim{}
	if _, allocated := NewClaim(object); allocated {
		t.Error("a claim that was given nothing is known")
	}
	object.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
		result("big/h200", "gpu.example.com", false), result("big/h200", "gpu.example.com", false), result("small", "gpu.example.com", false),
		result("net", "dra.net", false), result("watch", "gpu.example.com", true),
	}}}
	claim, allocated := NewClaim(object)
	if !allocated {
		t.Fatal("the claim is not known")
	}
	use := func(requests ...string) (list []corev1.ResourceClaim) {
		for _, r := range requests {
			list = append(list, corev1.ResourceClaim{Name: "devices", Request: r})
		}
		return list
	}
	for _, test := range []struct {
		name, reason string
		uses         []corev1.ResourceClaim
		requests     corev1.ResourceList
		claims       map[string]Claim
		kind         string
		count        int64
	}{
		{"whole", "the accelerators of it, without what is only looked at", use(""), nil, map[string]Claim{"made": claim}, "gpu.example.com", 3},
		{"a part", "alternatives of a request are that request", use("big"), nil, map[string]Claim{"made": claim}, "gpu.example.com", 2},
		{"two parts", "both", use("big", "small"), nil, map[string]Claim{"made": claim}, "gpu.example.com", 3},
		{"whole and a part", "the part is in it", use("", "small"), nil, map[string]Claim{"made": claim}, "gpu.example.com", 3},
		{"no accelerator", "a device is a device", use("net"), nil, map[string]Claim{"made": claim}, "dra.net", 1},
		{"not known", "nobody knows yet what it got", use(""), nil, nil, "", 0},
		{"known and empty", "it counts elsewhere", use(""), nil, map[string]Claim{"made": {}}, "", 0},
		{"not the engine's", "a claim of the pod that no container uses is not the engine's", nil, nil, nil, "rank", 1},
		{"beside a request", "what is requested by name comes first", use(""), corev1.ResourceList{"amd.com/gpu": resource.MustParse("8")}, map[string]Claim{"made": claim}, "amd.com/gpu", 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := &corev1.Pod{
				Spec: corev1.PodSpec{
					ResourceClaims: []corev1.PodResourceClaim{{Name: "devices", ResourceClaimTemplateName: new("template")}},
					Containers:     []corev1.Container{{Name: EngineContainer, Resources: corev1.ResourceRequirements{Requests: test.requests, Claims: test.uses}}},
				},
				Status: corev1.PodStatus{ResourceClaimStatuses: []corev1.PodResourceClaimStatus{{Name: "devices", ResourceClaimName: new("made")}}},
			}
			if kind, count := Devices(pod, test.claims); kind != test.kind || count != test.count {
				t.Errorf("%s: %d of %s, want %d of %s", test.reason, count, kind, test.count, test.kind)
			}
		})
	}
}
