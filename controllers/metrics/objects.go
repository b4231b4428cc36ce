package metrics

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/plan"
)

// collectTimeout bounds a look into the cache, which is in memory: only one that has not started yet takes long.
const collectTimeout = 2 * time.Second

// States of replicas, in the order of the table.
const (
	stateDemand    = "demand"
	stateAllocated = "allocated"
	statePresent   = "present"
	stateReady     = "ready"
	stateUpdated   = "updated"
	stateDraining  = "draining"
)

// ObjectsConfig is where objects are read from.
type ObjectsConfig struct {
	// Reader reads InferenceServices and EnginePools from the manager's cache.
	Reader client.Reader
	// Elected is closed when this operator leads. Others tell nothing of objects, so that each condition has one series.
	Elected <-chan struct{}
	Log     logr.Logger
}

// objects tells at each scrape what services and pools say of themselves. It keeps nothing, so what is deleted has no series
// from the next scrape on.
type objects struct {
	ObjectsConfig
	condition, replicas *prometheus.Desc
}

// RegisterObjects registers the series of conditions and replicas.
func RegisterObjects(registry prometheus.Registerer, config ObjectsConfig) error {
	c := &objects{ObjectsConfig: config, condition: Condition.Desc(), replicas: PoolReplicas.Desc()}
	if err := registry.Register(c); err != nil {
		return fmt.Errorf("register the series of objects: %w", err)
	}
	return nil
}

// Describe implements prometheus.Collector.
func (c *objects) Describe(out chan<- *prometheus.Desc) {
	out <- c.condition
	out <- c.replicas
}

// Collect implements prometheus.Collector. What cannot be read has no series this time; a scrape does not fail for it.
func (c *objects) Collect(out chan<- prometheus.Metric) {
	select {
	case <-c.Elected:
	default:
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var services v1alpha1.InferenceServiceList
	var pools v1alpha1.EnginePoolList
	for _, list := range []client.ObjectList{&services, &pools} {
		// They are the cache's own: nobody changes them here.
		if err := c.Reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			c.Log.Error(err, "Read objects for the operator's series")
			return
		}
	}
	for i := range services.Items {
		c.service(&services.Items[i], out)
	}
	for i := range pools.Items {
		c.pool(&pools.Items[i], out)
	}
}

func (c *objects) service(service *v1alpha1.InferenceService, out chan<- prometheus.Metric) {
	if service.DeletionTimestamp != nil {
		return
	}
	c.conditions(service.Status.Conditions, out, "InferenceService", service.Namespace, service.Name, plan.Tenant(service), service.Name, "")
}

func (c *objects) pool(pool *v1alpha1.EnginePool, out chan<- prometheus.Metric) {
	if pool.DeletionTimestamp != nil {
		return
	}
	tenant := pool.Spec.Tenant
	if tenant == "" {
		tenant = pool.Namespace
	}
	c.conditions(pool.Status.Conditions, out, "EnginePool", pool.Namespace, pool.Name, tenant, pool.Spec.Service, pool.Spec.Pool)
	demand := int32(1)
	if pool.Spec.Replicas != nil {
		demand = *pool.Spec.Replicas
	}
	counts := pool.Status.ReplicaCounts
	for _, n := range []struct {
		state    string
		replicas int32
	}{
		{stateDemand, demand}, {stateAllocated, counts.Allocated}, {statePresent, counts.Replicas}, {stateReady, counts.ReadyReplicas},
		{stateUpdated, counts.UpdatedReplicas}, {stateDraining, counts.DrainingReplicas},
	} {
		out <- newConstant(c.replicas, PoolReplicas.Labels, float64(n.replicas),
			[]string{pool.Namespace, tenant, pool.Spec.Service, pool.Spec.Pool, string(pool.Spec.Role), n.state})
	}
}

// conditions tells of those of one object; labels are those of the table before the condition's own.
func (c *objects) conditions(list []metav1.Condition, out chan<- prometheus.Metric, labels ...string) {
	for i := range list {
		out <- newConstant(c.condition, Condition.Labels, 1, append(labels[:len(labels):len(labels)], list[i].Type, string(list[i].Status), list[i].Reason))
	}
}
