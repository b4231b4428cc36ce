package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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
			if kind, count := Devices(pod); kind != test.kind || count != test.count {
				t.Errorf("%s: %d of %s, want %d of %s", test.reason, count, kind, test.count, test.kind)
			}
		})
	}
}
