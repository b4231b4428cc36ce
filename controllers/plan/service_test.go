package plan

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func newService(edit func(*v1alpha1.InferenceServiceSpec)) *v1alpha1.InferenceService {
	service := &v1alpha1.InferenceService{
		ObjectMeta: metav1.ObjectMeta{Name: "chat", Namespace: "team-a", UID: "service-uid"},
		Spec: v1alpha1.InferenceServiceSpec{
			Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"},
			Pools: []v1alpha1.PoolSpec{
				{Name: "prefill", Role: v1alpha1.RolePrefill, Replicas: new(int32(2))},
				{Name: "decode", Role: v1alpha1.RoleDecode, EngineShape: v1alpha1.EngineShape{DrainSeconds: new(int32(60))}},
			},
		},
	}
	if edit != nil {
		edit(&service.Spec)
	}
	return service
}

var serviceOwner = []metav1.OwnerReference{{
	APIVersion: "inference.sluice.dev/v1alpha1", Kind: "InferenceService", Name: "chat", UID: "service-uid",
	Controller: new(true), BlockOwnerDeletion: new(true),
}}

func TestEnginePools(t *testing.T) {
	service := newService(func(spec *v1alpha1.InferenceServiceSpec) {
		spec.Tenant = "blue"
		spec.Engine = v1alpha1.EngineSpec{Image: "engine:v2", Args: []string{"--x"}}
		spec.Pools[1].Autoscaling = &v1alpha1.AutoscalingSpec{MinReplicas: new(int32(3)), MaxReplicas: 5}
	})
	labels := func(name string, role v1alpha1.Role) map[string]string {
		return map[string]string{
			"inference.sluice.dev/service": "chat", "inference.sluice.dev/pool": name, "inference.sluice.dev/role": string(role),
			"inference.sluice.dev/engine-type": name, "inference.sluice.dev/tenant": "blue", "inference.sluice.dev/model": "tiny",
			"inference.sluice.dev/component": "engine", "llm-d.ai/role": name, "app.kubernetes.io/name": "sluice-engine",
			"app.kubernetes.io/instance": "chat-" + name, "app.kubernetes.io/component": "engine", "app.kubernetes.io/part-of": "chat",
			"app.kubernetes.io/managed-by": "sluice-operator",
		}
	}
	model := v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"}
	shared := v1alpha1.EngineSpec{Image: "engine:v2", Args: []string{"--x"}}
	want := []*v1alpha1.EnginePool{
		{
			ObjectMeta: metav1.ObjectMeta{Name: "chat-prefill", Namespace: "team-a", Labels: labels("prefill", v1alpha1.RolePrefill), OwnerReferences: serviceOwner},
			Spec:       v1alpha1.EnginePoolSpec{Service: "chat", Pool: "prefill", Role: v1alpha1.RolePrefill, Tenant: "blue", Replicas: new(int32(2)), Model: model, Engine: shared, SecretHash: "5ec3e7"},
		},
		{
			ObjectMeta: metav1.ObjectMeta{Name: "chat-decode", Namespace: "team-a", Labels: labels("decode", v1alpha1.RoleDecode), OwnerReferences: serviceOwner},
			Spec: v1alpha1.EnginePoolSpec{
				Service: "chat", Pool: "decode", Role: v1alpha1.RoleDecode, Tenant: "blue", Replicas: new(int32(3)), Model: model, Engine: shared, SecretHash: "5ec3e7",
				EngineShape: v1alpha1.EngineShape{DrainSeconds: new(int32(60))},
				Autoscaling: &v1alpha1.AutoscalingSpec{MinReplicas: new(int32(3)), MaxReplicas: 5},
			},
		},
	}
	if diff := cmp.Diff(want, EnginePools(service, "5ec3e7")); diff != "" {
		t.Errorf("pools (-want +got):\n%s", diff)
	}
}

func TestUpdatePool(t *testing.T) {
	scaling := &v1alpha1.AutoscalingSpec{MinReplicas: new(int32(1)), MaxReplicas: 5}
	tests := []struct {
		name     string
		reason   string
		live     func(*v1alpha1.EnginePoolSpec)
		want     func(*v1alpha1.EnginePoolSpec)
		changed  bool
		replicas int32
	}{
		{"equal", "nothing is written", nil, nil, false, 1},
		{"replicas", "without autoscaling the service says how many", func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(4)) }, nil, true, 1},
		{"scaled", "with autoscaling the number belongs to the autoscaler",
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas, s.Autoscaling = new(int32(4)), scaling },
			func(s *v1alpha1.EnginePoolSpec) { s.Autoscaling = scaling }, false, 4},
		{"scaling begins", "it begins from what is there",
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(4)) },
			func(s *v1alpha1.EnginePoolSpec) { s.Autoscaling = scaling }, true, 4},
		{"scaling begins beyond its bounds", "it begins within them",
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(9)) },
			func(s *v1alpha1.EnginePoolSpec) { s.Autoscaling = scaling }, true, 5},
		{"listed again", "a pool that was retired starts anew: an autoscaler leaves one alone that asks for no replica",
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(0)) },
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas, s.Autoscaling = new(int32(2)), scaling }, true, 2},
		{"secret not known", "what the pool has stays", func(s *v1alpha1.EnginePoolSpec) { s.SecretHash = "5ec3e7" }, nil, false, 1},
		{"another secret", "the pool rolls out", func(s *v1alpha1.EnginePoolSpec) { s.SecretHash = "5ec3e7" },
			func(s *v1alpha1.EnginePoolSpec) { s.SecretHash = "07" }, true, 1},
		{"scaling ends", "the service says how many again",
			func(s *v1alpha1.EnginePoolSpec) { s.Replicas, s.Autoscaling = new(int32(4)), scaling }, nil, true, 1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			live, want := newPool(v1alpha1.RoleDecode, test.live), newPool(v1alpha1.RoleDecode, test.want)
			if got := UpdatePool(live, want); got != test.changed {
				t.Errorf("%s: changed is %t, want %t", test.reason, got, test.changed)
			}
			if got := *live.Spec.Replicas; got != test.replicas {
				t.Errorf("%s: %d replicas, want %d", test.reason, got, test.replicas)
			}
		})
	}
}

func TestHeadlessService(t *testing.T) {
	pool := newPool(v1alpha1.RolePrefill, nil)
	want := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: "chat-prefill", Namespace: "team-a", Labels: PoolLabels(pool.Spec),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "inference.sluice.dev/v1alpha1", Kind: "EnginePool", Name: "chat-prefill", UID: "pool-uid",
				Controller: new(true), BlockOwnerDeletion: new(true),
			}},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "None", PublishNotReadyAddresses: true,
			Selector: map[string]string{"inference.sluice.dev/service": "chat", "inference.sluice.dev/pool": "prefill", "inference.sluice.dev/component": "engine"},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 30000, TargetPort: intstr.FromString("http"), Protocol: corev1.ProtocolTCP},
				{Name: "bootstrap", Port: 8998, TargetPort: intstr.FromString("bootstrap"), Protocol: corev1.ProtocolTCP},
			},
		},
	}
	if diff := cmp.Diff(want, HeadlessService(pool)); diff != "" {
		t.Errorf("service (-want +got):\n%s", diff)
	}
}

func TestNewRouter(t *testing.T) {
	service := newService(func(spec *v1alpha1.InferenceServiceSpec) {
		spec.Engine.ImagePullPolicy = corev1.PullNever
		spec.Router = v1alpha1.RouterSpec{
			Replicas: new(int32(2)), Policy: v1alpha1.PolicyRoundRobin,
			Service: v1alpha1.RouterServiceSpec{Type: corev1.ServiceTypeNodePort, Port: 80},
		}
	})
	labels := map[string]string{
		"inference.sluice.dev/service": "chat", "inference.sluice.dev/tenant": "team-a", "inference.sluice.dev/component": "router",
		"app.kubernetes.io/name": "sluice-router", "app.kubernetes.io/instance": "chat-router", "app.kubernetes.io/component": "router",
		"app.kubernetes.io/part-of": "chat", "app.kubernetes.io/managed-by": "sluice-operator",
	}
	meta := metav1.ObjectMeta{Name: "chat-router", Namespace: "team-a", Labels: labels, OwnerReferences: serviceOwner}
	selector := map[string]string{"inference.sluice.dev/service": "chat", "inference.sluice.dev/component": "router"}
	http := intstr.FromString("http")
	want := Router{
		ServiceAccount: &corev1.ServiceAccount{ObjectMeta: meta},
		Role: &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
		}},
		RoleBinding: &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "Role", Name: "chat-router"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "chat-router", Namespace: "team-a"}},
		},
		Service: &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: selector,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: http, Protocol: corev1.ProtocolTCP}},
		}},
		Deployment: &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(2)),
			Selector: &metav1.LabelSelector{MatchLabels: selector},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(1))},
			},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					ServiceAccountName: "chat-router", EnableServiceLinks: new(false), TerminationGracePeriodSeconds: new(int64(330)),
					SecurityContext: &corev1.PodSecurityContext{
						RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532)),
						SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
					},
					Containers: []corev1.Container{{
						Name: "router", Image: "router:v1", ImagePullPolicy: corev1.PullNever,
						Args: []string{
							"--host", "0.0.0.0", "--port", "8000", "--service", "chat", "--namespace", "team-a",
							"--policy", "round-robin", "--drain-timeout", "300s",
						},
						Ports:     []corev1.ContainerPort{{Name: "http", ContainerPort: 8000, Protocol: corev1.ProtocolTCP}},
						Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}},
						ReadinessProbe: &corev1.Probe{
							ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: http}},
							PeriodSeconds: 2, TimeoutSeconds: 5, FailureThreshold: 2,
						},
						LivenessProbe: &corev1.Probe{
							ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: http}},
							PeriodSeconds: 20, TimeoutSeconds: 5, FailureThreshold: 6,
						},
						SecurityContext: &corev1.SecurityContext{
							AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
							Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
						},
					}},
				},
			},
		}},
	}
	if diff := cmp.Diff(want, NewRouter(service, RouterDefaults{Image: "router:v1"})); diff != "" {
		t.Errorf("router (-want +got):\n%s", diff)
	}
	service.Spec.Router.KeysSecret = "keys"
	key := func(variable, key string, optional bool) corev1.EnvVar {
		return corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "keys"}, Key: key, Optional: &optional,
		}}}
	}
	keys := []corev1.EnvVar{key("SLUICE_ROUTER_ADMIN_API_KEY", "admin-api-key", false), key("SLUICE_ROUTER_API_KEY", "api-key", true)}
	want.Deployment.Spec.Template.Spec.Containers[0].Env = keys
	if diff := cmp.Diff(want, NewRouter(service, RouterDefaults{Image: "router:v1"})); diff != "" {
		t.Errorf("router with keys (-want +got):\n%s", diff)
	}
	if got, want := URL(service), "http://chat-router.team-a.svc:80"; got != want {
		t.Errorf("URL %s, want %s", got, want)
	}
}

func TestSummary(t *testing.T) {
	pools := []v1alpha1.PoolStatus{
		{
			Name: "prefill", Role: v1alpha1.RolePrefill, ReplicaCounts: v1alpha1.ReplicaCounts{ReadyReplicas: 1, Allocated: 2},
			Load: &v1alpha1.PoolLoad{RunningRequests: 3, WaitingRequests: 4, PrefillBootstrapQueue: new(int64(1)), PrefillInflightQueue: new(int64(2)), GenThroughput: "0.00", Ranks: 1,
				CacheHitRate: &v1alpha1.Spread{Mean: "0.25"}, TokenUsage: &v1alpha1.Spread{Mean: "0.10"}},
			Cost: &v1alpha1.PoolCost{Device: "nvidia.com/gpu", DeviceSeconds: 10, PromptTokens: 4000, GeneratedTokens: 9},
		},
		{
			Name: "decode", Role: v1alpha1.RoleDecode, ReplicaCounts: v1alpha1.ReplicaCounts{ReadyReplicas: 3, Allocated: 3},
			Load: &v1alpha1.PoolLoad{
				RunningRequests: 5, DecodeTransferQueue: new(int64(6)), GenThroughput: "120.50", Ranks: 3,
				Utilization: &v1alpha1.Spread{Min: "0.10", Mean: "0.40", Max: "0.60"}, TokenUsage: &v1alpha1.Spread{Mean: "0.70"},
			},
			Cost: &v1alpha1.PoolCost{Device: "nvidia.com/gpu", DeviceSeconds: 30, PromptTokens: 7, GeneratedTokens: 10000},
		},
		{
			Name: "more", Role: v1alpha1.RoleDecode, ReplicaCounts: v1alpha1.ReplicaCounts{ReadyReplicas: 1, Allocated: 1},
			Load: &v1alpha1.PoolLoad{GenThroughput: "1.25", Ranks: 1, Utilization: &v1alpha1.Spread{Min: "0.80", Mean: "0.80", Max: "0.80"}},
			Cost: &v1alpha1.PoolCost{Device: "nvidia.com/gpu", DeviceSeconds: 30, GeneratedTokens: 2000},
		},
		{
			Name: "odd", Role: v1alpha1.RoleDecode, // of other devices: its seconds are others
			Cost: &v1alpha1.PoolCost{Device: "rank", DeviceSeconds: 1000, GeneratedTokens: 1},
		},
	}
	want := &v1alpha1.ServiceSummary{Replicas: "prefill=1/2 decode=3/3 more=1/1 odd=0/0", Running: "5", Queued: "7", Utilization: "0.50", Throughput: "121.75",
		TokenUsage: "0.70", HitRate: "0.25", Cost: "prefill=2.50 decode=5.00"}
	if diff := cmp.Diff(want, Summary(pools)); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	want = &v1alpha1.ServiceSummary{Replicas: "decode=0/1", Running: "-", Queued: "-", Utilization: "-", Throughput: "-", TokenUsage: "-", HitRate: "-", Cost: "-"}
	if diff := cmp.Diff(want, Summary([]v1alpha1.PoolStatus{{Name: "decode", ReplicaCounts: v1alpha1.ReplicaCounts{Allocated: 1}}})); diff != "" {
		t.Errorf("summary without samples (-want +got):\n%s", diff)
	}
}
