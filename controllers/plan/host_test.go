package plan

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

func TestHostAccess(t *testing.T) {
	const off = " reaches into the node, and the operator was started without --allow-host-access (chart: operator.allowHostAccess); leave it out"
	tests := []struct {
		name     string
		reason   string
		uri      string
		template string
		want     string // empty: allowed
	}{
		{"volume claim", "what most use", "pvc://models/tiny", `{"spec": {"nodeSelector": {"gpu": "h200"}}}`, ""},
		{"host path", "any directory of the node could be read", "hostpath:///etc", "",
			`model.uri "hostpath:///etc": the operator was started without --allow-host-access (chart: operator.allowHostAccess); use pvc://CLAIM/PATH`},
		{"volume", "a template is no way around", "pvc://models/tiny", `{"spec": {"volumes": [{"name": "root", "hostPath": {"path": "/"}}]}}`,
			"template: spec.volumes[name=root].hostPath" + off},
		{"network", "ports of the node could be reached", "pvc://models/tiny", `{"spec": {"hostNetwork": true}}`, "template: spec.hostNetwork" + off},
		{"processes", "", "pvc://models/tiny", `{"spec": {"hostPID": true}}`, "template: spec.hostPID" + off},
		{"shared memory", "", "pvc://models/tiny", `{"spec": {"hostIPC": true}}`, "template: spec.hostIPC" + off},
		{"privileged", "", "pvc://models/tiny", `{"spec": {"containers": [{"name": "engine", "securityContext": {"privileged": true}}]}}`,
			"template: securityContext.privileged of container engine" + off},
		{"privileged at the start", "init containers count", "pvc://models/tiny",
			`{"spec": {"initContainers": [{"name": "init", "image": "i", "securityContext": {"privileged": true}}]}}`,
			"template: securityContext.privileged of container init" + off},
		{"capability", "", "pvc://models/tiny", `{"spec": {"containers": [{"name": "side", "image": "i", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}]}}`,
			"template: securityContext.capabilities.add SYS_ADMIN of container side" + off},
		{"harmless capability", "it opens no way into the node", "pvc://models/tiny",
			`{"spec": {"containers": [{"name": "engine", "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}]}}`, ""},
		{"port of the node", "", "pvc://models/tiny", `{"spec": {"containers": [{"name": "side", "image": "i", "ports": [{"containerPort": 1, "hostPort": 1}]}]}}`,
			"template: ports[].hostPort of container side" + off},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			pool := newPool(v1alpha1.RoleDecode, func(spec *v1alpha1.EnginePoolSpec) {
				spec.Model.URI = test.uri
				if test.template != "" {
					spec.Template = &runtime.RawExtension{Raw: []byte(test.template)}
				}
			})
			got := ""
			if _, err := Pod(pool, EngineDefaults{Image: "engine:v1"}, 0, 0, 0); err != nil {
				got = err.Error()
			}
			if got != test.want {
				t.Errorf("%s: got %q, want %q", test.reason, got, test.want)
			}
			if _, err := Pod(pool, EngineDefaults{Image: "engine:v1", AllowHostAccess: true}, 0, 0, 0); err != nil {
				t.Errorf("with host access allowed: %v", err)
			}
		})
	}
}
