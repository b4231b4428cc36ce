package autoscaling

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset/typed/apiregistration/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// apiServiceNames are the registrations that the server fills in.
func apiServiceNames(external bool) []string {
	names := []string{"v1beta1.custom.metrics.k8s.io", "v1beta2.custom.metrics.k8s.io"}
	if external {
		names = append(names, "v1beta1.external.metrics.k8s.io")
	}
	return names
}

// RegistrationState says how a version of a metrics API is registered with the cluster.
type RegistrationState string

const (
	// RegistrationUnknown means that it was not looked at yet, or the look failed.
	RegistrationUnknown RegistrationState = "Unknown"
	// Registered means that the APIService points here and trusts the certificate.
	Registered RegistrationState = "Registered"
	// RegistrationMissing means that there is no such APIService; the chart makes it.
	RegistrationMissing RegistrationState = "Missing"
	// RegistrationForeign means that the APIService belongs to another adapter and is left alone. Autoscalers of pools then read no
	// number; either remove the other adapter, or turn this one off and let the other serve the metrics.
	RegistrationForeign RegistrationState = "Foreign"
)

// Registration is the state of one APIService.
type Registration struct {
	APIService string
	State      RegistrationState
	Message    string
}

// registrar writes the CA bundle into the operator's APIServices.
type registrar struct {
	apiServices aggregatorclient.APIServiceInterface
	namespace   string // of the Service
	service     string
}

// register brings one APIService in line with the CA bundle. It writes only when the bundle differs, and only into an
// APIService that carries the operator's label and names its Service.
func (r *registrar) register(ctx context.Context, name string, bundle []byte) (registration Registration, wrote bool, err error) {
	registration = Registration{APIService: name, State: RegistrationUnknown}
	apiService, err := r.apiServices.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		registration.State = RegistrationMissing
		registration.Message = "no such APIService: install it with the chart (metricsAPI.enabled), or autoscalers read nothing"
		return registration, false, nil
	}
	if err != nil {
		return registration, false, fmt.Errorf("read APIService %s: %w", name, err)
	}
	if why := r.foreign(apiService); why != "" {
		registration.State = RegistrationForeign
		registration.Message = why
		return registration, false, nil
	}
	registration.State = Registered
	if bytes.Equal(apiService.Spec.CABundle, bundle) && !apiService.Spec.InsecureSkipTLSVerify {
		return registration, false, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": apiService.ResourceVersion},
		"spec":     map[string]any{"caBundle": bundle, "insecureSkipTLSVerify": false},
	})
	if err != nil {
		return registration, false, fmt.Errorf("encode the patch of APIService %s: %w", name, err)
	}
	if _, err := r.apiServices.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		registration.State = RegistrationUnknown
		return registration, false, fmt.Errorf("write the CA bundle into APIService %s: %w", name, err)
	}
	return registration, true, nil
}

// foreign says why an APIService is not the operator's; empty when it is.
func (r *registrar) foreign(a *apiregistrationv1.APIService) string {
	if got := a.Labels[v1alpha1.LabelComponent]; got != v1alpha1.ComponentMetricsAPI {
		return fmt.Sprintf("it lacks the label %s=%s, so it belongs to another adapter%s",
			v1alpha1.LabelComponent, v1alpha1.ComponentMetricsAPI, servedBy(a))
	}
	if s := a.Spec.Service; s == nil || s.Namespace != r.namespace || s.Name != r.service {
		return fmt.Sprintf("it does not name the Service %s/%s%s", r.namespace, r.service, servedBy(a))
	}
	return ""
}

func servedBy(a *apiregistrationv1.APIService) string {
	if a.Spec.Service == nil {
		return ""
	}
	return fmt.Sprintf(" (it is served by %s/%s)", a.Spec.Service.Namespace, a.Spec.Service.Name)
}
