package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

var engine = EngineDefaults{Image: "engine:v1", AllowHostAccess: true}

// newPool makes a pool of a role that edit may change.
func newPool(role v1alpha1.Role, edit func(*v1alpha1.EnginePoolSpec)) *v1alpha1.EnginePool {
	name := role.EngineType()
	pool := &v1alpha1.EnginePool{
		ObjectMeta: metav1.ObjectMeta{Name: PoolName("chat", name), Namespace: "team-a", UID: "pool-uid"},
		Spec: v1alpha1.EnginePoolSpec{
			Service: "chat", Pool: name, Role: role, Tenant: "team-a", Replicas: new(int32(1)),
			Model: v1alpha1.ModelSpec{Name: "tiny", URI: "pvc://models/tiny"},
		},
	}
	if edit != nil {
		edit(&pool.Spec)
	}
	return pool
}

func TestPod(t *testing.T) {
	pool := newPool(v1alpha1.RolePrefill, func(spec *v1alpha1.EnginePoolSpec) {
		spec.Engine.Args = []string{"--log-level", "debug"}
		spec.Args = []string{"--chunked-prefill-size", "64"}
		spec.Engine.Env = []corev1.EnvVar{{Name: "A", Value: "1"}}
		spec.Engine.ImagePullPolicy = corev1.PullNever
		spec.KVCache = v1alpha1.KVCacheSpec{PageSize: new(int32(8)), MaxTotalTokens: new(int32(4096))}
		spec.Scheduler = v1alpha1.SchedulerSpec{MaxRunningRequests: new(int32(9)), MaxRunningRequestsUnderSLO: new(int32(7)), ChunkedPrefillTokens: new(int32(128))}
		spec.DrainSeconds = new(int32(60))
	})
	revision, err := Revision(pool.Spec, engine)
	if err != nil {
		t.Fatal(err)
	}
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	health := func(delay, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			InitialDelaySeconds: delay, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")}},
			PeriodSeconds: period, TimeoutSeconds: 5, FailureThreshold: failures,
		}
	}
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "chat-prefill-3-0", Namespace: "team-a",
			Annotations: map[string]string{"inference.sluice.dev/restarts": "2"},
			Labels: map[string]string{
				"inference.sluice.dev/service":     "chat",
				"inference.sluice.dev/pool":        "prefill",
				"inference.sluice.dev/role":        "Prefill",
				"inference.sluice.dev/engine-type": "prefill",
				"inference.sluice.dev/replica":     "3",
				"inference.sluice.dev/node-rank":   "0",
				"inference.sluice.dev/revision":    revision,
				"inference.sluice.dev/tenant":      "team-a",
				"inference.sluice.dev/model":       "tiny",
				"inference.sluice.dev/rank":        "0",
				"inference.sluice.dev/tp-rank":     "0",
				"inference.sluice.dev/pp-rank":     "0",
				"inference.sluice.dev/dp-rank":     "0",
				"inference.sluice.dev/moe-ep-rank": "0",
				"inference.sluice.dev/component":   "engine",
				"llm-d.ai/role":                    "prefill",
				"app.kubernetes.io/name":           "sluice-engine",
				"app.kubernetes.io/instance":       "chat-prefill",
				"app.kubernetes.io/component":      "engine",
				"app.kubernetes.io/part-of":        "chat",
				"app.kubernetes.io/managed-by":     "sluice-operator",
			},
		},
		Spec: corev1.PodSpec{
			Hostname: "chat-prefill-3-0", Subdomain: "chat-prefill",
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(90)),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext: &corev1.PodSecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65532)),
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			},
			Volumes: []corev1.Volume{
				{Name: "model", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models", ReadOnly: true}}},
				{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "pd-secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "chat-pd", DefaultMode: new(int32(0o444))}}},
			},
			Containers: []corev1.Container{{
				Name: "engine", Image: "engine:v1", ImagePullPolicy: corev1.PullNever,
				Args: []string{
					"serve", "--model-path", "/models/tiny", "--served-model-name", "tiny", "--host", "0.0.0.0", "--port", "30000",
					"--enable-metrics", "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", "8998",
					"--disaggregation-secret-file", "/var/run/sluice/pd/secret", "--page-size", "8", "--max-total-tokens", "4096",
					"--max-running-requests", "9", "--max-running-requests-under-slo", "7", "--chunked-prefill-size", "128",
					"--drain-timeout", "60", "--log-level", "debug", "--chunked-prefill-size", "64",
				},
				Env: []corev1.EnvVar{
					field("POD_NAME", "metadata.name"), field("POD_NAMESPACE", "metadata.namespace"),
					field("POD_IP", "status.podIP"), field("NODE_NAME", "spec.nodeName"), {Name: "A", Value: "1"},
				},
				Ports: []corev1.ContainerPort{
					{Name: "http", ContainerPort: 30000, Protocol: corev1.ProtocolTCP},
					{Name: "bootstrap", ContainerPort: 8998, Protocol: corev1.ProtocolTCP},
				},
				VolumeMounts: []corev1.VolumeMount{
					{Name: "model", MountPath: "/models", ReadOnly: true},
					{Name: "tmp", MountPath: "/tmp"},
					{Name: "pd-secret", MountPath: "/var/run/sluice/pd", ReadOnly: true},
				},
				StartupProbe:   health(1, 1, 3600),
				ReadinessProbe: health(0, 3, 3),
				LivenessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("http")}},
					PeriodSeconds: 20, TimeoutSeconds: 10, FailureThreshold: 6,
				},
				Lifecycle:                &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					AllowPrivilegeEscalation: new(false), ReadOnlyRootFilesystem: new(true),
					Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				},
			}},
		},
	}
	got, err := Pod(pool, engine, 3, 0, 2)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pod (-want +got):\n%s", diff)
	}
}

func TestPodRanks(t *testing.T) {
	pool := newPool(v1alpha1.RoleUnified, func(spec *v1alpha1.EnginePoolSpec) {
		spec.Parallelism = v1alpha1.Parallelism{Tensor: 2, Pipeline: 2}
		spec.RanksPerPod = new(int32(1))
	})
	pod, err := Pod(pool, engine, 0, 3, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for key, value := range pod.Labels {
		if strings.HasSuffix(key, "rank") {
			got[strings.TrimPrefix(key, v1alpha1.LabelPrefix)] = value
		}
	}
	want := map[string]string{"node-rank": "3", "rank": "3", "tp-rank": "1", "pp-rank": "1", "dp-rank": "0", "moe-ep-rank": "0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rank labels (-want +got):\n%s", diff)
	}
	args := strings.Join(pod.Spec.Containers[0].Args, " ")
	wantArgs := "--tp-size 2 --pp-size 2 --nnodes 4 --node-rank 3 --dist-init-addr chat-unified-0-0.chat-unified:20000 --dist-timeout 3600 --dist-secret-file /var/run/sluice/pd/secret"
	if !strings.Contains(args, wantArgs) {
		t.Errorf("arguments %s, want them to hold %s", args, wantArgs)
	}
	if diff := cmp.Diff(map[string]string{v1alpha1.AnnotationLayout: "tensor=2,pipeline=2,data=1,nodes=4"}, pod.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	secret := corev1.VolumeMount{Name: "pd-secret", MountPath: "/var/run/sluice/pd", ReadOnly: true}
	if mounts := pod.Spec.Containers[0].VolumeMounts; !slices.Contains(mounts, secret) {
		t.Errorf("a pod of several lacks the secret that they share: %v", mounts)
	}

	pool.Spec.Parallelism = v1alpha1.Parallelism{Tensor: 2, Data: 2}
	pool.Spec.RanksPerPod = nil
	pod, err = Pod(pool, engine, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if rank, ok := pod.Labels[v1alpha1.LabelRank]; ok {
		t.Errorf("a pod with four ranks says that it is rank %s", rank)
	}
	args = strings.Join(pod.Spec.Containers[0].Args, " ")
	if !strings.HasSuffix(args, "--drain-timeout 300 --tp-size 2 --dp-size 2") {
		t.Errorf("arguments %s, want them to end with the sizes", args)
	}
	if mounts := pod.Spec.Containers[0].VolumeMounts; slices.Contains(mounts, secret) {
		t.Errorf("a pod alone has a secret: %v", mounts)
	}
}

func TestPodModel(t *testing.T) {
	tests := []struct {
		name, uri string
		volume    corev1.VolumeSource
		path      string
	}{
		{"claim", "pvc://models/a/b", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models", ReadOnly: true}}, "/models/a/b"},
		{"claim's root", "pvc://models", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "models", ReadOnly: true}}, "/models"},
		{"host", "hostpath:///data/tiny/", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/data/tiny", Type: new(corev1.HostPathDirectory)}}, "/models"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			volume, path, err := modelSource(test.uri)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.volume, volume); diff != "" {
				t.Errorf("volume (-want +got):\n%s", diff)
			}
			if path != test.path {
				t.Errorf("path %s, want %s", path, test.path)
			}
		})
	}
	for _, uri := range []string{"", "pvc://", "hostpath://x", "hf://a/b"} {
		if _, _, err := modelSource(uri); err == nil {
			t.Errorf("modelSource(%q) succeeded", uri)
		}
	}
}

func TestPodTemplate(t *testing.T) {
	template := func(text string) func(*v1alpha1.EnginePoolSpec) {
		return func(spec *v1alpha1.EnginePoolSpec) { spec.Template = &runtime.RawExtension{Raw: []byte(text)} }
	}
	pod, err := Pod(newPool(v1alpha1.RoleDecode, template(`{
		"metadata": {"labels": {"team": "x", "app.kubernetes.io/part-of": "other"}, "annotations": {"note": "y"}},
		"spec": {
			"nodeSelector": {"gpu": "h200"},
			"containers": [{"name": "engine", "env": [{"name": "B", "value": "2"}]}, {"name": "side", "image": "side:v1"}]
		}}`)), engine, 0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := pod.Labels["team"]; got != "x" {
		t.Errorf("label team is %q, want x", got)
	}
	if got := pod.Labels["app.kubernetes.io/part-of"]; got != "chat" {
		t.Errorf("label part-of is %q: the operator's labels come last", got)
	}
	if diff := cmp.Diff(map[string]string{"note": "y"}, pod.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"gpu": "h200"}, pod.Spec.NodeSelector); diff != "" {
		t.Errorf("node selector (-want +got):\n%s", diff)
	}
	names := make([]string, 0, 2)
	for _, container := range pod.Spec.Containers {
		names = append(names, container.Name)
	}
	if diff := cmp.Diff([]string{"engine", "side"}, names); diff != "" {
		t.Errorf("containers (-want +got):\n%s", diff)
	}
	env := make([]string, 0, 5)
	for _, variable := range pod.Spec.Containers[0].Env {
		env = append(env, variable.Name)
	}
	if diff := cmp.Diff([]string{"B", "POD_NAME", "POD_NAMESPACE", "POD_IP", "NODE_NAME"}, env); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}

	for name, text := range map[string]string{
		"no object":           `[]`,
		"a wrong type":        `{"spec": {"hostNetwork": "perhaps"}}`,
		"the engine is gone":  `{"spec": {"containers": [{"$patch": "delete", "name": "engine"}]}}`,
		"containers in a map": `{"spec": {"containers": {}}}`,
		"a misspelt field":    `{"spec": {"nodeSelectr": {"gpu": "h200"}}}`,
		"restarts in place":   `{"spec": {"restartPolicy": "Always"}}`,
		"born draining":       `{"metadata": {"annotations": {"inference.sluice.dev/draining": "2026-01-02T03:04:05Z"}}}`,
		"of another service":  `{"metadata": {"labels": {"inference.sluice.dev/service": "other"}}}`,
	} {
		if _, err := Pod(newPool(v1alpha1.RoleDecode, template(text)), engine, 0, 0, 0); err == nil || !strings.Contains(err.Error(), "template") {
			t.Errorf("%s: got %v, want an error that names the template", name, err)
		}
	}
}

func TestRevision(t *testing.T) {
	base := func(spec *v1alpha1.EnginePoolSpec) {}
	tests := []struct {
		name   string
		reason string
		edit   func(*v1alpha1.EnginePoolSpec)
		image  string
		same   bool
	}{
		{"nothing", "the hash is a function", base, "engine:v1", true},
		{"replicas", "scaling is no roll-out", func(s *v1alpha1.EnginePoolSpec) { s.Replicas = new(int32(9)) }, "engine:v1", true},
		{"autoscaling", "scaling is no roll-out", func(s *v1alpha1.EnginePoolSpec) { s.Autoscaling = &v1alpha1.AutoscalingSpec{MaxReplicas: 3} }, "engine:v1", true},
		{"defaults written down", "a default is what it is, written or not", func(s *v1alpha1.EnginePoolSpec) {
			s.Parallelism = v1alpha1.Parallelism{Tensor: 1, Pipeline: 1, Data: 1, Expert: 1}
			s.KVCache.PageSize, s.DrainSeconds, s.RanksPerPod = new(int32(16)), new(int32(300)), new(int32(1))
			s.Template = &runtime.RawExtension{Raw: []byte(` { } `)}
		}, "engine:v1", true},
		{"image written down", "the operator's image is what it resolves to", func(s *v1alpha1.EnginePoolSpec) { s.Engine.Image = "engine:v1" }, "engine:v2", true},
		{"operator's image", "another engine", base, "engine:v2", false},
		{"page size", "another engine", func(s *v1alpha1.EnginePoolSpec) { s.KVCache.PageSize = new(int32(32)) }, "engine:v1", false},
		{"argument", "another engine", func(s *v1alpha1.EnginePoolSpec) { s.Args = []string{"--x"} }, "engine:v1", false},
		{"model", "another model", func(s *v1alpha1.EnginePoolSpec) { s.Model.URI = "pvc://models/other" }, "engine:v1", false},
		{"trace endpoint", "it is a flag of the start", func(s *v1alpha1.EnginePoolSpec) { s.Engine.Tracing = &v1alpha1.TracingSpec{Endpoint: "a:4317"} }, "engine:v1", false},
		{"template", "another pod", func(s *v1alpha1.EnginePoolSpec) {
			s.Template = &runtime.RawExtension{Raw: []byte(`{"spec":{"priority":1}}`)}
		}, "engine:v1", false},
		{"resources", "another pod", func(s *v1alpha1.EnginePoolSpec) {
			s.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, "engine:v1", false},
	}
	first, err := Revision(newPool(v1alpha1.RoleDecode, nil).Spec, engine)
	if err != nil {
		t.Fatal(err)
	}
	// An operator that is newer must find the engines of this spec to be what they should be.
	if want := "fb8c8c8757"; first != want {
		t.Errorf("revision %s, want %s: running engines would be rolled out by an upgrade of the operator", first, want)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := Revision(newPool(v1alpha1.RoleDecode, test.edit).Spec, EngineDefaults{Image: test.image})
			if err != nil {
				t.Fatal(err)
			}
			if (got == first) != test.same {
				t.Errorf("%s: revision %s, the first is %s", test.reason, got, first)
			}
		})
	}
	traced := func(endpoint string, level int32, modules ...string) string {
		revision, err := Revision(newPool(v1alpha1.RoleDecode, func(s *v1alpha1.EnginePoolSpec) {
			s.Engine.Tracing = &v1alpha1.TracingSpec{Endpoint: endpoint, Level: &level, Modules: modules}
		}).Spec, engine)
		if err != nil {
			t.Fatal(err)
		}
		return revision
	}
	if traced("a:4317", 1) != traced("a:4317", 0, "request") {
		t.Error("the level and the modules of traces are a new revision, and running engines can be told them")
	}
	if traced("a:4317", 1) == traced("b:4317", 1) {
		t.Error("another collector is no new revision, and engines know it from their start alone")
	}
	quantity := func(text string) func(*v1alpha1.EnginePoolSpec) {
		return func(s *v1alpha1.EnginePoolSpec) {
			s.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(text)}
		}
	}
	one, _ := Revision(newPool(v1alpha1.RoleDecode, quantity("1")).Spec, engine)
	thousand, _ := Revision(newPool(v1alpha1.RoleDecode, quantity("1000m")).Spec, engine)
	if one != thousand {
		t.Errorf("1 and 1000m CPU are revisions %s and %s", one, thousand)
	}
}
