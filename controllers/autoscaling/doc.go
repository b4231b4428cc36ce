// Package autoscaling lets Kubernetes' own HorizontalPodAutoscaler scale a pool on what its engines say.
//
// It owns the HorizontalPodAutoscaler of a pool (BuildHPA), the condition ScalingActive that its state becomes
// (ScalingActive), and the server of custom.metrics.k8s.io (MetricsServer) with its certificate. It must not decide how
// many replicas exist: the autoscaler writes demand into EnginePool's scale, and the enginepool controller does the
// rest. It asks no engine: numbers come from observe.Store. The enginepool controller calls the builders, cmd/operator
// adds the server to the manager.
//
// # Metrics of type Pods
//
// The autoscaler lists the pods that the scale's selector picks and asks this server for the metric of each. Of pods
// that run and have a value it takes the mean v, and with the target t it wants ceil(v/t * pods with a value), or no
// change while v/t is within its tolerance of 1. A pod that is Pending, or runs and has no value, counts as 0 when v > t
// and as t when v < t, and the answer may not turn the direction. So a replica that still starts neither holds back a
// scale-out that is still needed nor feeds a scale-in.
//
// Type Object with an average value was the alternative: ceil(sum/t), with its tolerance around status.replicas. That
// number counts replicas that drain, so after a scale-in from 4 to 3 with every replica at its target the ratio is
// 3/4, out of tolerance, and the first fluctuation above 3t makes a fourth replica again. Type Object with a value
// multiplies by the Ready pods, which include draining ones as well. Both are served for pools (mean or sum, see
// Metric...), for people who build their own autoscalers.
//
// A draining pod is left out on both sides: the scale selector excludes it by its label, and it has no value here. Were
// it selected with its value, its load, which goes away by itself, would ask for another replica; were it selected
// without one, it would count as an idle replica and hold back a scale-out until it is gone.
//
// # What is not a number
//
// Only Ready pods have values. A Ready pod without one is an error for the whole answer, with a reason that the
// autoscaler shows in its condition and ScalingActive turns into the pool's: SentinelValue (-1 on a prefill pool, NaN,
// infinities), StaleSample, PartialSamples (some pods or ranks have a fresh sample, others do not) and NoSamples. The
// autoscaler then keeps the replicas as they are. The one exception is a pod that became Ready within the time for
// which a sample counts and was not polled since: it is left out like one that still starts. An engine that stops
// answering loses its readiness by its own probe, which ends such an error.
//
// # Where the server runs
//
// On every replica of the operator, not on the leader alone: every replica polls, so each answers from samples of its
// own, a plain Service over all operator pods is right at any time, and the loss of the leader interrupts nothing. The
// certificate is shared through a Secret that any replica may make or renew; the first writer wins and the others read
// it. The CA bundle goes into the APIServices v1beta1 and v1beta2 of custom.metrics.k8s.io, but only into those that
// carry this operator's label and name its Service: another adapter's registration is left alone and told in the log
// and by MetricsServer.Registrations.
//
// Callers are authenticated and authorised by the cluster: the aggregator's front-proxy certificate or a token review,
// then a subject access review of the verb get on PODS-OR-ENGINEPOOLS/METRIC in custom.metrics.k8s.io.
package autoscaling
