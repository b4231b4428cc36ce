//go:build e2e

package e2e

// pd is a service with a prefill and a decode pool. Small limits make its load visible with few requests.
const pd = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata:
  name: chat
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  tenant: blue
  pools:
  - name: prefill
    role: Prefill
  - name: decode
    role: Decode
    scheduler: {maxRunningRequests: 8}
    drainSeconds: 60
`

// scaled is pd with a decode pool that scales on utilization.
const scaled = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata:
  name: chat
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - name: prefill
    role: Prefill
  - name: decode
    role: Decode
    scheduler: {maxRunningRequests: 8}
    drainSeconds: 60
    autoscaling:
      minReplicas: 1
      maxReplicas: 3
      behavior: {scaleDown: {stabilizationWindowSeconds: 10}}
      metrics: [{type: Utilization, target: "0.6"}]
`

// unified is the same model on one pool of unified engines.
const unified = `
apiVersion: inference.sluice.dev/v1alpha1
kind: InferenceService
metadata:
  name: plain
spec:
  model: {name: tiny, uri: "pvc://models/tiny"}
  pools:
  - name: all
    role: Unified
`
