package plan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// EngineContainer is the name of the container that runs the engine; a template overlays it by this name.
const EngineContainer = "engine"

const (
	defaultPageSize     = 16
	defaultDrainSeconds = 300

	// graceMarginSeconds is what a pod gets beyond its drain time to close sockets and end.
	graceMarginSeconds = 30
	// startSeconds is how long an engine may take to load its model.
	startSeconds = 3600
	// distPort is where the ranks of a replica with several pods meet.
	distPort = 20000

	modelVolume, modelMount   = "model", "/models"
	secretVolume, secretMount = "pd-secret", "/var/run/sluice/pd"
	tmpVolume, tmpMount       = "tmp", "/tmp"
)

// SecretKey is the key of the PD Secret that holds the shared secret.
const SecretKey = "secret"

// NonRootUser is the user and group that engines and routers run as.
const NonRootUser int64 = 65532

// EngineDefaults is what the operator was started with.
type EngineDefaults struct {
	// Image of the engine for pools that name none.
	Image string
	// AllowHostAccess lets pods reach into their node: see checkHost.
	AllowHostAccess bool
}

func engineImage(pool v1alpha1.EnginePoolSpec, defaults EngineDefaults) string {
	if pool.Engine.Image != "" {
		return pool.Engine.Image
	}
	return defaults.Image
}

// DrainSeconds is how long a replica of the pool may take to finish its requests.
func DrainSeconds(pool v1alpha1.EnginePoolSpec) int32 {
	if pool.DrainSeconds != nil {
		return *pool.DrainSeconds
	}
	return defaultDrainSeconds
}

// PoolLabels are on everything that belongs to one pool.
func PoolLabels(pool v1alpha1.EnginePoolSpec) map[string]string {
	return map[string]string{
		v1alpha1.LabelService:          pool.Service,
		v1alpha1.LabelPool:             pool.Pool,
		v1alpha1.LabelRole:             string(pool.Role),
		v1alpha1.LabelEngineType:       pool.Role.EngineType(),
		v1alpha1.LabelTenant:           LabelValue(pool.Tenant),
		v1alpha1.LabelModel:            LabelValue(pool.Model.Name),
		v1alpha1.LabelComponent:        v1alpha1.ComponentEngine,
		v1alpha1.LabelLLMDRole:         llmdRole(pool.Role),
		"app.kubernetes.io/name":       "sluice-engine",
		"app.kubernetes.io/instance":   PoolName(pool.Service, pool.Pool),
		"app.kubernetes.io/component":  v1alpha1.ComponentEngine,
		"app.kubernetes.io/part-of":    pool.Service,
		"app.kubernetes.io/managed-by": "sluice-operator",
	}
}

func llmdRole(role v1alpha1.Role) string {
	if role == v1alpha1.RoleUnified {
		return "both"
	}
	return role.EngineType()
}

// EngineSelector finds the engine pods of a pool.
func EngineSelector(pool v1alpha1.EnginePoolSpec) map[string]string {
	return map[string]string{
		v1alpha1.LabelService:   pool.Service,
		v1alpha1.LabelPool:      pool.Pool,
		v1alpha1.LabelComponent: v1alpha1.ComponentEngine,
	}
}

// ScaleSelector finds one pod per replica of a pool, the leader, unless the replica drains. Autoscalers divide the load
// by what it finds.
func ScaleSelector(pool v1alpha1.EnginePoolSpec) string {
	selector := EngineSelector(pool)
	selector[v1alpha1.LabelNodeRank] = "0"
	return labels.FormatLabels(selector) + ",!" + v1alpha1.LabelDraining
}

// Pod renders one engine pod of a pool: pod nodeRank of a replica. restarts counts the replica's failures in a row
// before. The caller adds the owner. It fails when the shape has no layout or the template is no overlay of a pod.
func Pod(pool *v1alpha1.EnginePool, defaults EngineDefaults, replica, nodeRank, restarts int32) (*corev1.Pod, error) {
	spec := pool.Spec
	layout, err := NewLayout(spec.EngineShape)
	if err != nil {
		return nil, err
	}
	revision, err := Revision(spec, defaults)
	if err != nil {
		return nil, err
	}
	model, modelPath, err := modelSource(spec.Model.URI)
	if err != nil {
		return nil, err
	}
	name := PodName(pool.Name, replica, nodeRank)

	container := corev1.Container{
		Name:            EngineContainer,
		Image:           engineImage(spec, defaults),
		ImagePullPolicy: spec.Engine.ImagePullPolicy,
		Args:            engineArgs(spec, layout, pool.Name, replica, nodeRank, modelPath),
		Env:             slices.Concat(podEnv(), traceEnv(spec.Engine.Tracing), spec.Engine.Env),
		Ports:           enginePorts(spec.Role),
		Resources:       *spec.Resources.DeepCopy(),
		VolumeMounts: []corev1.VolumeMount{
			{Name: modelVolume, MountPath: modelMount, ReadOnly: true},
			{Name: tmpVolume, MountPath: tmpMount},
		},
		StartupProbe:    startupProbe(),
		ReadinessProbe:  healthProbe(3, 3),
		LivenessProbe:   livenessProbe(),
		Lifecycle:       settled(),
		SecurityContext: containerSecurity(),
		// The last line of an engine that fails says why; it goes into the pool's status.
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}
	volumes := []corev1.Volume{
		{Name: modelVolume, VolumeSource: model},
		{Name: tmpVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	if needsSecret(spec.Role, layout) {
		container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: secretVolume, MountPath: secretMount, ReadOnly: true})
		volumes = append(volumes, corev1.Volume{Name: secretVolume, VolumeSource: corev1.VolumeSource{
			Secret: &corev1.SecretVolumeSource{SecretName: SecretName(spec.Service), DefaultMode: new(int32(0o444))},
		}})
	}
	template := corev1.PodTemplateSpec{
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{container},
			Volumes:    volumes,
			// A dead engine is not restarted in place: the operator replaces the whole replica.
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: new(int64(DrainSeconds(spec)) + graceMarginSeconds),
			AutomountServiceAccountToken:  new(false),
			EnableServiceLinks:            new(false),
			SecurityContext:               podSecurity(),
			Hostname:                      name,
			Subdomain:                     pool.Name,
		},
	}
	if err := overlay(&template, spec); err != nil {
		return nil, err
	}
	if !defaults.AllowHostAccess {
		if err := checkHost(template.Spec, spec); err != nil {
			return nil, err
		}
	}

	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.Name, pod.Namespace, pod.GenerateName = name, pool.Namespace, ""
	pod.OwnerReferences, pod.Finalizers = nil, template.Finalizers
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	maps.Copy(pod.Labels, PoolLabels(spec))
	maps.Copy(pod.Labels, rankLabels(layout, replica, nodeRank))
	pod.Labels[v1alpha1.LabelRevision] = revision
	if restarts > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationRestarts, decimal(restarts))
	}
	if len(layout.Ranks) > 1 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, v1alpha1.AnnotationLayout, layout.text())
	}
	return pod, nil
}

// rankLabels place a pod in its replica. A pod that hosts exactly one rank also says which.
func rankLabels(layout Layout, replica, nodeRank int32) map[string]string {
	place := map[string]string{
		v1alpha1.LabelReplica:  decimal(replica),
		v1alpha1.LabelNodeRank: decimal(nodeRank),
	}
	if ranks := layout.Node(nodeRank); len(ranks) == 1 {
		place[v1alpha1.LabelRank] = decimal(ranks[0].Rank)
		place[v1alpha1.LabelTPRank] = decimal(ranks[0].TP)
		place[v1alpha1.LabelPPRank] = decimal(ranks[0].PP)
		place[v1alpha1.LabelDPRank] = decimal(ranks[0].DP)
		place[v1alpha1.LabelMoEEPRank] = decimal(ranks[0].MoEEP)
	}
	return place
}

// engineArgs is the command line of `sluice-engine serve`. The service's arguments come after the operator's, the
// pool's last; of a flag that is there twice, the engine takes the last.
func engineArgs(spec v1alpha1.EnginePoolSpec, layout Layout, poolName string, replica, nodeRank int32, modelPath string) []string {
	args := []string{
		"serve",
		"--model-path", modelPath,
		"--served-model-name", spec.Model.Name,
		"--host", "0.0.0.0",
		"--port", decimal(v1alpha1.DefaultEnginePort),
		"--enable-metrics",
	}
	switch spec.Role {
	case v1alpha1.RolePrefill:
		args = append(args, "--disaggregation-mode", "prefill", "--disaggregation-bootstrap-port", decimal(v1alpha1.DefaultBootstrapPort))
	case v1alpha1.RoleDecode:
		args = append(args, "--disaggregation-mode", "decode")
	case v1alpha1.RoleUnified:
	}
	if spec.Role != v1alpha1.RoleUnified {
		args = append(args, "--disaggregation-secret-file", path.Join(secretMount, SecretKey))
	}
	pageSize := int32(defaultPageSize)
	if spec.KVCache.PageSize != nil {
		pageSize = *spec.KVCache.PageSize
	}
	args = append(args, "--page-size", decimal(pageSize))
	for _, limit := range []struct {
		flag  string
		value *int32
	}{
		{"--max-total-tokens", spec.KVCache.MaxTotalTokens},
		{"--max-running-requests", spec.Scheduler.MaxRunningRequests},
		{"--max-running-requests-under-slo", spec.Scheduler.MaxRunningRequestsUnderSLO},
		{"--chunked-prefill-size", spec.Scheduler.ChunkedPrefillTokens},
	} {
		if limit.value != nil {
			args = append(args, limit.flag, decimal(*limit.value))
		}
	}
	args = append(args, "--drain-timeout", decimal(DrainSeconds(spec)))
	args = append(args, layoutArgs(layout, poolName, replica, nodeRank)...)
	if tracing := spec.Engine.Tracing; tracing != nil {
		args = append(args, enableTrace, "--otlp-traces-endpoint", tracing.Endpoint)
	}
	args = append(args, spec.Engine.Args...)
	return append(args, spec.Args...)
}

// layoutArgs tell an engine its place; a replica of one rank needs none.
func layoutArgs(layout Layout, poolName string, replica, nodeRank int32) []string {
	var args []string
	for _, size := range []struct {
		flag  string
		value int32
	}{
		{"--tp-size", layout.Tensor},
		{"--pp-size", layout.Pipeline},
		{"--dp-size", layout.Data},
	} {
		if size.value > 1 {
			args = append(args, size.flag, decimal(size.value))
		}
	}
	if layout.Nodes > 1 {
		// The leader's name leads to it as soon as it has an address: the headless Service publishes pods that are not ready.
		leader := fmt.Sprintf("%s.%s:%d", PodName(poolName, replica, 0), poolName, distPort)
		args = append(args, "--nnodes", decimal(layout.Nodes), "--node-rank", decimal(nodeRank), "--dist-init-addr", leader,
			// A pod waits for a place in the cluster as long as it may take to start.
			"--dist-timeout", decimal(startSeconds), "--dist-secret-file", path.Join(secretMount, SecretKey))
	}
	return args
}

// needsSecret says whether the engines of a pool prove to each other that they belong together: those that hand KV pages
// over, and the pods of one replica.
func needsSecret(role v1alpha1.Role, layout Layout) bool {
	return role != v1alpha1.RoleUnified || layout.Nodes > 1
}

// modelSource gives the volume that holds the model and the path of the model in the container.
func modelSource(uri string) (volume corev1.VolumeSource, modelPath string, err error) {
	scheme, rest, _ := strings.Cut(uri, "://")
	switch scheme {
	case "pvc":
		claim, inside, _ := strings.Cut(rest, "/")
		if claim == "" {
			break
		}
		volume.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim, ReadOnly: true}
		return volume, path.Join(modelMount, inside), nil
	case "hostpath":
		if !path.IsAbs(rest) {
			break
		}
		volume.HostPath = &corev1.HostPathVolumeSource{Path: path.Clean(rest), Type: new(corev1.HostPathDirectory)}
		return volume, modelMount, nil
	}
	return volume, "", fmt.Errorf("model.uri %q: must be pvc://CLAIM/PATH or hostpath:///ABSOLUTE/PATH", uri)
}

// overlay lays the pool's template over the rendered pod by the rules of a strategic merge patch.
func overlay(template *corev1.PodTemplateSpec, spec v1alpha1.EnginePoolSpec) error {
	if spec.Template == nil || len(spec.Template.Raw) == 0 {
		return nil
	}
	original, err := json.Marshal(template)
	if err != nil {
		return fmt.Errorf("encode the pod: %w", err)
	}
	merged, err := strategicpatch.StrategicMergePatch(original, spec.Template.Raw, corev1.PodTemplateSpec{})
	if err != nil {
		return fmt.Errorf("template: lay it over the pod: %w; write it as a pod template, for example {spec: {nodeSelector: {…}}}", err)
	}
	var result corev1.PodTemplateSpec
	strict := json.NewDecoder(bytes.NewReader(merged))
	strict.DisallowUnknownFields() // a misspelt field would be dropped in silence
	if err := strict.Decode(&result); err != nil {
		return fmt.Errorf("template: it makes no valid pod: %w", err)
	}
	if err := checkKeys(result.ObjectMeta); err != nil {
		return err
	}
	if policy := result.Spec.RestartPolicy; policy != corev1.RestartPolicyNever {
		return fmt.Errorf("template: spec.restartPolicy is %s, and the operator replaces the whole replica when an engine ends; leave it out", policy)
	}
	for _, container := range result.Spec.Containers {
		if container.Name == EngineContainer {
			*template = result
			return nil
		}
	}
	return fmt.Errorf("template: it removes the container %s; overlay it by that name instead", EngineContainer)
}

// checkKeys refuses labels and annotations by which the operator and the routers tell what a pod is and whether it
// drains: a pod that is born draining would be replaced at once, again and again.
func checkKeys(meta metav1.ObjectMeta) error {
	keys := map[string]string{}
	maps.Copy(keys, meta.Labels)
	maps.Copy(keys, meta.Annotations)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if strings.HasPrefix(key, v1alpha1.LabelPrefix) {
			return fmt.Errorf("template: its metadata sets %s, and keys with %s are the operator's; leave it out", key, v1alpha1.LabelPrefix)
		}
	}
	return nil
}

func podEnv() []corev1.EnvVar {
	field := func(name, path string) corev1.EnvVar {
		return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
	}
	return []corev1.EnvVar{
		field("POD_NAME", "metadata.name"),
		field("POD_NAMESPACE", "metadata.namespace"),
		field("POD_IP", "status.podIP"),
		field("NODE_NAME", "spec.nodeName"),
	}
}

func enginePorts(role v1alpha1.Role) []corev1.ContainerPort {
	ports := []corev1.ContainerPort{{Name: v1alpha1.PortHTTP, ContainerPort: v1alpha1.DefaultEnginePort, Protocol: corev1.ProtocolTCP}}
	if role == v1alpha1.RolePrefill {
		ports = append(ports, corev1.ContainerPort{Name: v1alpha1.PortBootstrap, ContainerPort: v1alpha1.DefaultBootstrapPort, Protocol: corev1.ProtocolTCP})
	}
	return ports
}

func healthProbe(periodSeconds, failures int32) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString(v1alpha1.PortHTTP)}},
		PeriodSeconds:    periodSeconds,
		TimeoutSeconds:   5,
		FailureThreshold: failures,
	}
}

// settled puts a second between a pod's deletion and the signal that ends it. The first process of a container is not told of a
// signal that comes before it runs its own program, as when a pod is deleted while it starts: it would serve on for its whole grace.
func settled() *corev1.Lifecycle {
	return &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1}}}
}

// startupProbe first asks after a second, in which a small model is loaded: each probe that fails is a warning.
func startupProbe() *corev1.Probe {
	probe := healthProbe(1, startSeconds)
	probe.InitialDelaySeconds = 1
	return probe
}

// livenessProbe only asks whether the process still accepts connections: an engine that is busy or drains is alive.
func livenessProbe() *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString(v1alpha1.PortHTTP)}},
		PeriodSeconds:    20,
		TimeoutSeconds:   10,
		FailureThreshold: 6,
	}
}

func podSecurity() *corev1.PodSecurityContext {
	return &corev1.PodSecurityContext{
		RunAsNonRoot:   new(true),
		RunAsUser:      new(NonRootUser),
		RunAsGroup:     new(NonRootUser),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
}

func containerSecurity() *corev1.SecurityContext {
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: new(false),
		ReadOnlyRootFilesystem:   new(true),
		Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// PodRestarts reads how often in a row the replica of a pod had failed before the pod was made.
func PodRestarts(pod metav1.Object) int32 {
	n, err := strconv.ParseInt(pod.GetAnnotations()[v1alpha1.AnnotationRestarts], 10, 32)
	if err != nil {
		return 0
	}
	return int32(max(0, n))
}

func decimal[T int | int32 | int64](n T) string { return strconv.FormatInt(int64(n), 10) }
