package plugin_test

import (
	"context"
	"errors"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/plugin"
	"github.com/sluice-dev/sluice/plugin/cluster"
)

// busyClient lets somebody else write right before each update.
type busyClient struct {
	client.Client
	before func(context.Context) error
}

func (c busyClient) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	if err := c.before(ctx); err != nil {
		return err
	}
	return c.Client.Update(ctx, object, options...)
}

// TestRolloutAmongWriters: a status that is written in between does not stop a change; another spec does, and one whose status never
// comes to rest.
func TestRolloutAmongWriters(t *testing.T) {
	w, service, _ := chat(t, "writers")
	status := func(ctx context.Context) error {
		var now v1alpha1.InferenceService
		if err := w.api.Get(ctx, keyOf(service), &now); err != nil {
			return err
		}
		now.Status.ObservedGeneration++
		return w.api.Status().Update(ctx, &now)
	}
	spec := func(ctx context.Context) error {
		var now v1alpha1.InferenceService
		if err := w.api.Get(ctx, keyOf(service), &now); err != nil {
			return err
		}
		now.Spec.Engine.Image += "x"
		return w.api.Update(ctx, &now)
	}
	for _, tc := range []struct {
		name   string
		times  int // that before writes
		before func(context.Context) error
		fails  bool
	}{
		{"a status", 3, status, false},
		{"a status again and again", 1000, status, true},
		{"a spec", 1, spec, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, out, _ := w.plugin("", plugin.Text)
			if err := p.RolloutPause(t.Context(), "chat", false); err != nil {
				t.Fatal(err)
			}
			left := tc.times
			p.Cluster.Client = busyClient{p.Cluster.Client, func(ctx context.Context) error {
				if left--; left < 0 {
					return nil
				}
				return tc.before(ctx)
			}}
			err := p.RolloutPause(t.Context(), "chat", true)
			if tc.fails != (err != nil) || err != nil && !errors.Is(err, cluster.ErrChanged) {
				t.Errorf("it ends with %v, and says %s", err, out)
			}
		})
	}
}
