package plan

import (
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// RouterContainer is the name of the router's container and of its port.
const (
	RouterContainer = "router"
	routerPortName  = "http"
)

// RouterDefaults is what the operator was started with.
type RouterDefaults struct {
	// Image of the router for services that name none.
	Image string
}

// Router is everything that a service's router consists of.
type Router struct {
	ServiceAccount *corev1.ServiceAccount
	Role           *rbacv1.Role
	RoleBinding    *rbacv1.RoleBinding
	Deployment     *appsv1.Deployment
	Service        *corev1.Service
}

// Tenant is who owns the service: spec.tenant, by default the namespace.
func Tenant(service *v1alpha1.InferenceService) string {
	if service.Spec.Tenant != "" {
		return service.Spec.Tenant
	}
	return service.Namespace
}

// URL is where clients in the cluster reach the service.
func URL(service *v1alpha1.InferenceService) string {
	return fmt.Sprintf("http://%s.%s.svc:%d", RouterName(service.Name), service.Namespace, routerPort(service))
}

// NeedsSecret says whether engines of the service prove to each other that they belong together: because they hand KV pages
// over, or because a replica lies on several pods.
func NeedsSecret(service *v1alpha1.InferenceService) bool {
	return slices.ContainsFunc(service.Spec.Pools, poolNeedsSecret)
}

func poolNeedsSecret(pool v1alpha1.PoolSpec) bool {
	layout, _ := NewLayout(pool.EngineShape) // a shape without a layout has no pods
	return needsSecret(pool.Role, layout)
}

// EnginePools renders the pools of a service, in the order of spec.pools. secretHash is that of its PD Secret, empty when
// it is not known: UpdatePool then leaves what a pool has.
func EnginePools(service *v1alpha1.InferenceService, secretHash string) []*v1alpha1.EnginePool {
	pools := make([]*v1alpha1.EnginePool, 0, len(service.Spec.Pools))
	for _, pool := range service.Spec.Pools {
		spec := v1alpha1.EnginePoolSpec{
			Service:     service.Name,
			Pool:        pool.Name,
			Role:        pool.Role,
			Tenant:      Tenant(service),
			Replicas:    new(startReplicas(pool)),
			Model:       service.Spec.Model,
			Engine:      *service.Spec.Engine.DeepCopy(),
			SLO:         service.Spec.SLO.DeepCopy(),
			EngineShape: *pool.EngineShape.DeepCopy(),
			Rollout:     service.Spec.Rollout,
			Autoscaling: pool.Autoscaling.DeepCopy(),

			Observability: *service.Spec.Observability.MonitorSpec.DeepCopy(),
		}
		if poolNeedsSecret(pool) {
			spec.SecretHash = secretHash
		}
		pools = append(pools, &v1alpha1.EnginePool{
			ObjectMeta: metav1.ObjectMeta{
				Name:            PoolName(service.Name, pool.Name),
				Namespace:       service.Namespace,
				Labels:          PoolLabels(spec),
				OwnerReferences: OwnedByService(service),
			},
			Spec: spec,
		})
	}
	return pools
}

// startReplicas is what a new pool starts with. With autoscaling it lies within its bounds.
func startReplicas(pool v1alpha1.PoolSpec) int32 {
	replicas := int32(1)
	if pool.Replicas != nil {
		replicas = *pool.Replicas
	}
	if scaling := pool.Autoscaling; scaling != nil {
		replicas = min(max(replicas, scaling.Min()), scaling.MaxReplicas)
	}
	return replicas
}

// UpdatePool makes live what want says and tells whether that changed it. While roll-outs are paused, what engines are made
// from stays as it is. Where the pool is scaled automatically, the
// live number of replicas stays: it belongs to the autoscaler. Where scaling begins, it begins from the live number,
// within its bounds. From 0 it begins as a new pool does, since autoscalers leave a pool alone that asks for no replica:
// a pool that was retired and is listed again would stay empty.
func UpdatePool(live, want *v1alpha1.EnginePool) (changed bool) {
	spec := want.Spec.DeepCopy()
	if scaling := want.Spec.Autoscaling; scaling != nil && live.Spec.Replicas != nil {
		switch {
		case live.Spec.Autoscaling != nil && live.Spec.Autoscaling.Min() == 0 && *live.Spec.Replicas == 0 && scaling.Min() > 0:
			// It sleeps and must not any more: it begins as a new pool does.
		case live.Spec.Autoscaling != nil:
			spec.Replicas = live.Spec.Replicas
		case *live.Spec.Replicas > 0:
			spec.Replicas = new(min(max(*live.Spec.Replicas, scaling.Min()), scaling.MaxReplicas))
		}
	}
	if spec.SecretHash == "" {
		spec.SecretHash = live.Spec.SecretHash
	}
	if spec.Rollout.Paused {
		held := live.Spec.DeepCopy()
		spec.Model, spec.Engine, spec.EngineShape = held.Model, WithToldOf(held.Engine, want.Spec.Engine), held.EngineShape
	}
	if !equality.Semantic.DeepEqual(live.Spec, *spec) {
		live.Spec = *spec
		changed = true
	}
	for key, value := range want.Labels {
		if live.Labels[key] != value {
			if live.Labels == nil {
				live.Labels = map[string]string{}
			}
			live.Labels[key] = value
			changed = true
		}
	}
	return changed
}

// RetirePool makes a pool that its service lists no more ask for no replica, and tells whether that changed it.
func RetirePool(live *v1alpha1.EnginePool) (changed bool) {
	if live.Spec.Autoscaling != nil || live.Spec.Replicas == nil || *live.Spec.Replicas != 0 {
		live.Spec.Autoscaling = nil
		live.Spec.Replicas = new(int32(0))
		return true
	}
	return false
}

// IsEmpty says whether the pool's controller has seen its newest spec and no replica is left.
func IsEmpty(pool *v1alpha1.EnginePool) bool {
	return pool.Status.ObservedGeneration == pool.Generation && pool.Status.Replicas == 0
}

// HeadlessService gives the pods of a pool their DNS names and the monitors their endpoints, ready or not.
func HeadlessService(pool *v1alpha1.EnginePool) *corev1.Service {
	ports := make([]corev1.ServicePort, 0, 2)
	for _, port := range enginePorts(pool.Spec.Role) {
		ports = append(ports, corev1.ServicePort{Name: port.Name, Port: port.ContainerPort, TargetPort: intstr.FromString(port.Name), Protocol: port.Protocol})
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:            pool.Name,
			Namespace:       pool.Namespace,
			Labels:          PoolLabels(pool.Spec),
			OwnerReferences: OwnedByPool(pool),
		},
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			ClusterIP:                corev1.ClusterIPNone,
			Selector:                 EngineSelector(pool.Spec),
			PublishNotReadyAddresses: true,
			Ports:                    ports,
		},
	}
}

// Secret renders the PD Secret of a service around a value that the caller made.
func Secret(service *v1alpha1.InferenceService, value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:            SecretName(service.Name),
			Namespace:       service.Namespace,
			Labels:          ServiceLabels(service, v1alpha1.ComponentEngine),
			OwnerReferences: OwnedByService(service),
		},
		Type:       corev1.SecretTypeOpaque,
		StringData: map[string]string{SecretKey: value},
	}
}

// NewRouter renders the router of a service.
func NewRouter(service *v1alpha1.InferenceService, defaults RouterDefaults) Router {
	meta := metav1.ObjectMeta{
		Name:            RouterName(service.Name),
		Namespace:       service.Namespace,
		Labels:          ServiceLabels(service, v1alpha1.ComponentRouter),
		OwnerReferences: OwnedByService(service),
	}
	selector := map[string]string{
		v1alpha1.LabelService:   service.Name,
		v1alpha1.LabelComponent: v1alpha1.ComponentRouter,
	}
	spec := service.Spec.Router
	return Router{
		ServiceAccount: &corev1.ServiceAccount{ObjectMeta: *meta.DeepCopy()},
		Role: &rbacv1.Role{
			ObjectMeta: *meta.DeepCopy(),
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}}},
		},
		RoleBinding: &rbacv1.RoleBinding{
			ObjectMeta: *meta.DeepCopy(),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: meta.Name, Namespace: meta.Namespace}},
		},
		Deployment: &appsv1.Deployment{
			ObjectMeta: *meta.DeepCopy(),
			Spec: appsv1.DeploymentSpec{
				Replicas: new(routerReplicas(service)),
				Selector: &metav1.LabelSelector{MatchLabels: selector},
				Strategy: appsv1.DeploymentStrategy{
					Type: appsv1.RollingUpdateDeploymentStrategyType,
					RollingUpdate: &appsv1.RollingUpdateDeployment{
						MaxUnavailable: new(intstr.FromInt32(0)),
						MaxSurge:       new(intstr.FromInt32(1)),
					},
				},
				Template: corev1.PodTemplateSpec{
					ObjectMeta: metav1.ObjectMeta{Labels: ServiceLabels(service, v1alpha1.ComponentRouter)},
					Spec:       routerPod(service, defaults),
				},
			},
		},
		Service: &corev1.Service{
			ObjectMeta: *meta.DeepCopy(),
			Spec: corev1.ServiceSpec{
				Type:     serviceType(spec.Service.Type),
				Selector: selector,
				Ports: []corev1.ServicePort{{
					Name: routerPortName, Port: routerPort(service), TargetPort: intstr.FromString(routerPortName), Protocol: corev1.ProtocolTCP,
				}},
			},
		},
	}
}

func routerPod(service *v1alpha1.InferenceService, defaults RouterDefaults) corev1.PodSpec {
	spec := service.Spec.Router
	image := defaults.Image
	if spec.Image != "" {
		image = spec.Image
	}
	probe := func(periodSeconds, failures int32, handler corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: handler, PeriodSeconds: periodSeconds, TimeoutSeconds: 5, FailureThreshold: failures}
	}
	return corev1.PodSpec{
		ServiceAccountName: RouterName(service.Name),
		EnableServiceLinks: new(false),
		SecurityContext:    podSecurity(),
		// A router that ends lets its streams finish.
		TerminationGracePeriodSeconds: new(int64(routerDrainSeconds(service)) + graceMarginSeconds),
		Containers: []corev1.Container{{
			Name:            RouterContainer,
			Image:           image,
			ImagePullPolicy: service.Spec.Engine.ImagePullPolicy,
			Args: append([]string{
				"--host", "0.0.0.0",
				"--port", decimal(v1alpha1.DefaultRouterPort),
				"--service", service.Name,
				"--namespace", service.Namespace,
				"--policy", policyFlag(spec.Policy),
				"--drain-timeout", decimal(routerDrainSeconds(service)) + "s",
			}, wakeArgs(service)...),
			Env:       routerKeys(spec.KeysSecret),
			Ports:     []corev1.ContainerPort{{Name: routerPortName, ContainerPort: v1alpha1.DefaultRouterPort, Protocol: corev1.ProtocolTCP}},
			Resources: *spec.Resources.DeepCopy(),
			Lifecycle: settled(),
			ReadinessProbe: probe(2, 2, corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString(routerPortName)},
			}),
			LivenessProbe: probe(20, 6, corev1.ProbeHandler{
				TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(routerPortName)},
			}),
			SecurityContext: containerSecurity(),
		}},
	}
}

// routerKeys gives a router its keys. One whose Secret is missing does not start: open is not what was asked for.
func routerKeys(secret string) []corev1.EnvVar {
	if secret == "" {
		return nil
	}
	from := func(variable, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: key, Optional: new(optional),
		}}}
	}
	return []corev1.EnvVar{from("SLUICE_ROUTER_ADMIN_API_KEY", "admin-api-key", false), from("SLUICE_ROUTER_API_KEY", "api-key", true)}
}

// wakeArgs let a router hold requests that wait for a pool to wake up, where one may sleep.
func wakeArgs(service *v1alpha1.InferenceService) []string {
	for _, pool := range service.Spec.Pools {
		if pool.Autoscaling == nil || pool.Autoscaling.Min() > 0 {
			continue
		}
		seconds := int32(v1alpha1.DefaultWakeUpSeconds)
		if service.Spec.Router.WakeUpSeconds != nil {
			seconds = *service.Spec.Router.WakeUpSeconds
		}
		return []string{"--wake-timeout", decimal(seconds) + "s"}
	}
	return nil
}

// routerDrainSeconds is as long as the slowest pool may take.
func routerDrainSeconds(service *v1alpha1.InferenceService) int32 {
	seconds := int32(0)
	for _, pool := range service.Spec.Pools {
		seconds = max(seconds, DrainSeconds(v1alpha1.EnginePoolSpec{EngineShape: pool.EngineShape}))
	}
	return seconds
}

func policyFlag(policy v1alpha1.RouterPolicy) string {
	if policy == v1alpha1.PolicyRoundRobin {
		return "round-robin"
	}
	return "least-load"
}

func routerReplicas(service *v1alpha1.InferenceService) int32 {
	if service.Spec.Router.Replicas != nil {
		return *service.Spec.Router.Replicas
	}
	return 1
}

func routerPort(service *v1alpha1.InferenceService) int32 {
	if port := service.Spec.Router.Service.Port; port != 0 {
		return port
	}
	return v1alpha1.DefaultRouterPort
}

func serviceType(of corev1.ServiceType) corev1.ServiceType {
	if of == "" {
		return corev1.ServiceTypeClusterIP
	}
	return of
}

// ServiceLabels are on everything that belongs to a service and to none of its pools.
func ServiceLabels(service *v1alpha1.InferenceService, component string) map[string]string {
	return map[string]string{
		v1alpha1.LabelService:          service.Name,
		v1alpha1.LabelTenant:           LabelValue(Tenant(service)),
		v1alpha1.LabelComponent:        component,
		"app.kubernetes.io/name":       "sluice-" + component,
		"app.kubernetes.io/instance":   strings.Join([]string{service.Name, component}, "-"),
		"app.kubernetes.io/component":  component,
		"app.kubernetes.io/part-of":    service.Name,
		"app.kubernetes.io/managed-by": "sluice-operator",
	}
}

// OwnedByService is the owner of everything that exists once a service, and of its pools.
func OwnedByService(service *v1alpha1.InferenceService) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(service, v1alpha1.GroupVersion.WithKind("InferenceService"))}
}

// OwnedByPool is the owner of everything that exists once a pool and of its pods.
func OwnedByPool(pool *v1alpha1.EnginePool) []metav1.OwnerReference {
	return []metav1.OwnerReference{*metav1.NewControllerRef(pool, v1alpha1.GroupVersion.WithKind("EnginePool"))}
}
