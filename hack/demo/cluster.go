package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/hack/trial"
)

const (
	namespace = "team-a"
	service   = "chat"
	manifest  = "config/samples/chat.yaml"
)

// cluster tells the whole story on a cluster.
func (s *story) cluster(ctx context.Context) error {
	s.title("A Kubernetes cluster, and the images")
	t, err := trial.Up(ctx, s.root, s.out)
	if err != nil {
		return err
	}
	s.title("The operator, from the chart")
	if err := t.Install(ctx); err != nil {
		return err
	}
	s.title("A small model, made by the engine itself on a volume")
	if err := t.EnsureNamespace(ctx, namespace); err != nil {
		return err
	}
	if err := t.EnsureModel(ctx, namespace); err != nil {
		return err
	}
	base, stop, err := s.apply(ctx, t)
	if err != nil {
		return err
	}
	defer stop()

	s.title("A completion, streamed: router -> prefill -> KV pages -> decode -> router")
	if err := s.complete(ctx, base); err != nil {
		return err
	}
	s.title("Metrics, from the engines themselves: totals since each started, and the load of each rank")
	if err := s.metrics(ctx, t); err != nil {
		return err
	}
	if err := s.scale(ctx, t, base); err != nil {
		return err
	}
	return s.epilogue(ctx, t)
}

func (s *story) apply(ctx context.Context, t *trial.Trial) (base string, stop func(), err error) {
	s.title("One manifest: %s", manifest)
	text, err := os.ReadFile(filepath.Join(s.root, manifest))
	if err != nil {
		return "", nil, err
	}
	s.indent(string(text))
	if err := t.Apply(ctx, namespace, string(text)); err != nil {
		return "", nil, err
	}
	if err := t.UntilCurrent(ctx, namespace, service, 3*time.Minute); err != nil {
		return "", nil, err
	}
	if err := t.UntilReady(ctx, namespace, service, 3*time.Minute); err != nil {
		return "", nil, err
	}
	if err := t.UntilSettled(ctx, namespace, service, 3*time.Minute); err != nil {
		return "", nil, err
	}
	for _, args := range [][]string{
		{"get", "inferenceservices.inference.sluice.dev", "-n", namespace},
		{"get", "pods", "-n", namespace, "-L", v1alpha1.LabelRole, "-L", v1alpha1.LabelReplica, "-l", v1alpha1.LabelService + "=" + service},
	} {
		if err := s.kubectl(ctx, t, args...); err != nil {
			return "", nil, err
		}
	}
	return t.Reach(ctx, namespace, trial.RouterName(service))
}

func (s *story) kubectl(ctx context.Context, t *trial.Trial, args ...string) error {
	s.say("$ kubectl %s", strings.Join(args, " "))
	out, err := t.Kubectl(ctx, args...)
	if err != nil {
		return err
	}
	s.indent(out)
	return nil
}

func (s *story) metrics(ctx context.Context, t *trial.Trial) error {
	expositions, err := t.Scrape(ctx, namespace, service)
	if err != nil {
		return err
	}
	for _, line := range trial.Excerpt(expositions,
		"sglang:num_requests_total", "sglang:prompt_tokens_total", "sglang:generation_tokens_total",
		"sglang:time_to_first_token_seconds", "sglang:e2e_request_latency_seconds", "sglang:kv_transfer_latency_ms") {
		s.say("%s", line)
	}
	fmt.Fprintln(s.out)
	if err := trial.WriteLoadTable(s.out, expositions); err != nil {
		return err
	}
	s.say("(UTILIZATION is that of the last batch, as in SGLang; status and autoscaler read /v1/loads, which is of this moment)")
	return nil
}

// scale puts load on the decode pool until it has grown, takes the load away and waits until the pool is back, while a
// steady client never stops.
func (s *story) scale(ctx context.Context, t *trial.Trial, base string) error {
	pool, err := t.Pool(ctx, namespace, service, "decode")
	if err != nil {
		return err
	}
	if pool.Spec.Autoscaling == nil {
		return errors.New("the sample has no autoscaling on its decode pool")
	}
	request := func(tokens int) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			_, err := trial.Complete(ctx, base, trial.Completion{
				Model: "tiny", Prompt: fmt.Sprintf("%s %d", prompt, n), MaxTokens: tokens, IgnoreEOS: true, Stream: true,
			}, nil)
			return err
		}
	}
	steady := trial.StartLoad(ctx, 1, request(16))
	defer steady.Stop()

	target := pool.Spec.Autoscaling.Metrics[0].Target
	s.title("Load: 24 clients; the decode pool scales on utilization, target %.2g", target.AsApproximateFloat64())
	heavy := trial.StartLoad(ctx, 24, request(256))
	defer heavy.Stop()
	if err := s.untilScaled(ctx, t, "at least 2 busy decode replicas", func(pool *v1alpha1.EnginePool) bool {
		load := pool.Status.Load
		return pool.Status.ReadyReplicas >= 2 && load != nil && load.Ranks >= 2 && load.Utilization != nil && load.Utilization.Min != "0.00"
	}); err != nil {
		return err
	}
	expositions, err := t.Scrape(ctx, namespace, service)
	if err != nil {
		return err
	}
	if err := trial.WriteLoadTable(s.out, expositions); err != nil {
		return err
	}
	if err := s.kubectl(ctx, t, "get", "inferenceservices.inference.sluice.dev", "-n", namespace); err != nil {
		return err
	}
	s.say("load: %s", heavy.Stop())

	s.title("The load is gone: the pool drains back to 1 while the steady client goes on")
	if err := s.untilScaled(ctx, t, "1 decode replica", func(pool *v1alpha1.EnginePool) bool {
		return pool.Status.Replicas == 1 && pool.Status.ReadyReplicas == 1
	}); err != nil {
		return err
	}
	report := steady.Stop()
	s.say("steady client, over scale-out and scale-in: %s", report)
	if report.Failed() > 0 {
		return errors.New("requests failed while the pool scaled")
	}
	return nil
}

func (s *story) untilScaled(ctx context.Context, t *trial.Trial, what string, done func(*v1alpha1.EnginePool) bool) error {
	return t.Until(ctx, 5*time.Minute, what, func(ctx context.Context) (string, bool, error) {
		pool, err := t.Pool(ctx, namespace, service, "decode")
		if err != nil {
			return "", false, err
		}
		var hpa autoscalingv2.HorizontalPodAutoscaler
		if err := t.Client.Get(ctx, client.ObjectKeyFromObject(pool), &hpa); err != nil {
			return "", false, client.IgnoreNotFound(err)
		}
		utilization := "-"
		if pool.Status.Load != nil && pool.Status.Load.Utilization != nil {
			utilization = pool.Status.Load.Utilization.Mean
		}
		state := fmt.Sprintf("HPA wants %d; decode demand %d, allocated %d, ready %d, draining %d; utilization %s",
			hpa.Status.DesiredReplicas, *pool.Spec.Replicas, pool.Status.Allocated, pool.Status.ReadyReplicas, pool.Status.DrainingReplicas, utilization)
		return state, done(pool), nil
	})
}

func (s *story) epilogue(ctx context.Context, t *trial.Trial) error {
	if err := t.UntilSettled(ctx, namespace, service, time.Minute); err != nil {
		return err
	}
	svc, err := t.Service(ctx, namespace, service)
	if err != nil {
		return err
	}
	kubectl, err := t.KubectlPath(ctx)
	if err != nil {
		return err
	}
	s.title("Done. Where to look next")
	for _, c := range svc.Status.Conditions {
		s.say("%-24s %-8s %s", c.Type, c.Status, c.Message)
	}
	if !apimeta.IsStatusConditionTrue(svc.Status.Conditions, v1alpha1.ConditionReady) {
		return errors.New("the service is not ready at the end")
	}
	s.say("")
	s.say("export KUBECONFIG=%s PATH=%s:$PATH", t.Kubeconfig, filepath.Dir(kubectl))
	s.say("kubectl -n %s get inferenceservices.inference.sluice.dev %s -o yaml    # conditions, and the load of each pool", namespace, service)
	s.say("kubectl -n %s get enginepools.inference.sluice.dev -o yaml    # the last decision on each pool", namespace)
	s.say("kubectl -n %s get enginepools.inference.sluice.dev,hpa,pods", namespace)
	s.say("docs/architecture.md    # how it works;   make demo-down    # remove all of this")
	return nil
}

// remove takes everything away.
func (s *story) remove(ctx context.Context) error {
	return trial.Down(ctx, s.root, s.out, namespace)
}
