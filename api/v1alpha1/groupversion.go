package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the resources in this package.
var GroupVersion = schema.GroupVersion{Group: "inference.sluice.dev", Version: "v1alpha1"}

// AddToScheme adds the types of this package to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &InferenceService{}, &InferenceServiceList{}, &EnginePool{}, &EnginePoolList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
