package monitoring

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/controllers/owned"
)

// Outcome is what became of an object.
type Outcome string

const (
	// Applied means that it was made or changed because something else is wanted now.
	Applied Outcome = "Applied"
	// Restored means that somebody else had changed or deleted it, and it is as it was.
	Restored Outcome = "Restored"
	// Unchanged means that it is there as it should be.
	Unchanged Outcome = "Unchanged"
	// CRDMissing means that the cluster has no such resource; Applier.Source tells when it gets one.
	CRDMissing Outcome = "CRDMissing"
	// Failed means that the API server refused it, or could not be reached.
	Failed Outcome = "Failed"
	// Removed means that it was there and is not wanted; Heard alone is told so.
	Removed Outcome = "Removed"
)

const (
	// fieldManager owns the fields that the operator applies.
	fieldManager = "sluice-operator"

	// trustFor is how long an object is taken to be as it was where no watch tells otherwise. After that, the next Apply
	// reads it again.
	trustFor = 5 * time.Minute
)

// Change is what Apply did.
type Change struct {
	Outcome Outcome
	// Detail says what somebody else had done, with Restored: "spec.endpoints was changed".
	Detail string
}

// ApplierConfig says how objects of other operators' kinds reach the cluster.
type ApplierConfig struct {
	// Dynamic and Discovery reach the API server without a cache.
	Dynamic   dynamic.Interface
	Discovery discovery.ServerResourcesInterface
	// Resources are those that may be applied; they are looked for and watched.
	Resources []Resource
	// Namespaces to watch in; none means all.
	Namespaces []string
	Clock      clock.Clock
	Log        logr.Logger
	// Heard is told what became of each object, if it is set.
	Heard func(kind string, outcome Outcome)
}

// Applier writes objects of optional kinds by server-side apply, only when they differ from what is there. As a
// manager.Runnable it watches whether the resources exist and, while they do, the objects with the operator's label: the
// listeners of its Source reconcile when a resource appears or goes, and when an object is not as it was applied. Apply
// works without Start too; it then notices a resource at the next call, and a foreign change after trustFor.
type Applier struct {
	cfg ApplierConfig

	mu      sync.Mutex
	present map[Resource]bool // those that were looked for
	trusted map[object]trust  // what was applied, found equal or found absent

	listeners map[int]listener
	next      int // key of the next listener
}

// object names one object of the cluster.
type object struct {
	Resource
	types.NamespacedName
}

// trust remembers how an object was, by digests: rules of a service alone are 150 KB and more.
type trust struct {
	desired digest // of what was applied; zero: it is not to be there
	meta    any    // of what was applied: its labels, annotations and owners, which are small
	content digest // of the live object when it was left, defaults included, metadata and status left out
	uid     types.UID
	until   time.Time // zero: somebody changed it, look

	// While the object is written nobody knows yet what it will look like: the newest event is kept until it is known.
	writing bool
	event   *sighting
}

// wanted says whether the object is to be there.
func (t trust) wanted() bool { return t.desired != digest{} }

// altered says whether somebody else changed the object that t remembers.
func (t trust) altered(s sighting) bool {
	if s.gone || !t.wanted() {
		return s.gone == t.wanted()
	}
	return s.content != t.content || differs(s.live.Object["metadata"], t.meta, "") != ""
}

// NewApplier makes an applier.
func NewApplier(cfg ApplierConfig) (*Applier, error) {
	if cfg.Dynamic == nil || cfg.Discovery == nil || cfg.Clock == nil || len(cfg.Resources) == 0 {
		return nil, errors.New("monitors' applier: dynamic, discovery, resources and clock are all needed")
	}
	return &Applier{
		cfg:       cfg,
		present:   map[Resource]bool{},
		trusted:   map[object]trust{},
		listeners: map[int]listener{},
	}, nil
}

// NewApplierForConfig makes an applier with clients of its own; those of cfg are not looked at.
func NewApplierForConfig(config *rest.Config, cfg ApplierConfig) (*Applier, error) {
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("monitors' applier: make a client: %w", err)
	}
	discoveryClient, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("monitors' applier: make a client: %w", err)
	}
	cfg.Dynamic, cfg.Discovery = dynamicClient, discoveryClient
	return NewApplier(cfg)
}

// resourceOf finds the resource of an object by its type.
func (a *Applier) resourceOf(desired client.Object) (Resource, error) {
	kind := desired.GetObjectKind().GroupVersionKind()
	for _, r := range a.cfg.Resources {
		if r.Kind == kind.Kind && r.GVR.GroupVersion() == kind.GroupVersion() {
			return r, nil
		}
	}
	return Resource{}, fmt.Errorf("apply %s %s/%s: the applier was made without this resource", kind, desired.GetNamespace(), desired.GetName())
}

// Apply brings an object, whose type must be set, in line. A cluster without its resource is no error. The error says
// what the API server refused.
func (a *Applier) Apply(ctx context.Context, desired client.Object) (Change, error) {
	resource, err := a.resourceOf(desired)
	if err != nil {
		return Change{Outcome: Failed}, err
	}
	change, err := a.apply(ctx, resource, desired)
	if a.cfg.Heard != nil {
		a.cfg.Heard(resource.Kind, change.Outcome)
	}
	return change, err
}

func (a *Applier) apply(ctx context.Context, resource Resource, desired client.Object) (Change, error) {
	key := object{resource, client.ObjectKeyFromObject(desired)}
	want, wanted, err := encode(desired)
	if err != nil {
		return Change{Outcome: Failed}, fmt.Errorf("encode %s %s: %w", resource.Kind, key.NamespacedName, err)
	}
	known, missing := a.recall(key)
	if missing {
		return Change{Outcome: CRDMissing}, nil
	}
	now := a.cfg.Clock.Now()
	if known.desired == wanted && now.Before(known.until) {
		return Change{Outcome: Unchanged}, nil
	}

	// From here on events wait until it is known what the object looks like.
	a.begin(key)
	change, live, err := a.write(ctx, resource, want, desired, known, wanted)
	if err != nil || change.Outcome == CRDMissing {
		if change.Outcome == CRDMissing {
			a.lost(resource)
		}
		known.until = time.Time{}
		a.settle(ctx, key, known)
		return change, err
	}
	left, err := sight(live, false)
	if err != nil {
		return Change{Outcome: Failed}, fmt.Errorf("encode %s %s: %w", resource.Kind, key.NamespacedName, err)
	}
	a.settle(ctx, key, trust{desired: wanted, meta: want.Object["metadata"], content: left.content, uid: live.GetUID(), until: now.Add(trustFor)})
	return change, nil
}

// write brings the live object in line, where it is not, and gives it as it is then.
func (a *Applier) write(ctx context.Context, resource Resource, want *unstructured.Unstructured, desired client.Object, known trust, wanted digest) (Change, *unstructured.Unstructured, error) {
	change := Change{Outcome: Applied}
	objects := a.cfg.Dynamic.Resource(resource.GVR).Namespace(desired.GetNamespace())
	live, err := objects.Get(ctx, desired.GetName(), metav1.GetOptions{})
	if err == nil && (known.uid == "" || known.uid != live.GetUID()) {
		if err := checkOwner(resource.Kind, live, desired); err != nil {
			return Change{Outcome: Failed}, nil, err
		}
	}
	switch {
	case err == nil && differs(live.Object, want.Object, "") == "":
		change.Outcome = Unchanged
	case err == nil || apierrors.IsNotFound(err): // the object or its resource is missing; applying tells which
		if known.desired == wanted {
			change.Outcome, change.Detail = Restored, "it was deleted"
			if err == nil {
				change.Detail = differs(live.Object, want.Object, "") + " was changed"
			}
		}
		live, err = objects.Apply(ctx, desired.GetName(), want, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	}
	switch {
	case isNoResource(err):
		return Change{Outcome: CRDMissing}, nil, nil
	case err != nil:
		return Change{Outcome: Failed}, nil, fmt.Errorf("apply %s %s: %w", resource.Kind, client.ObjectKeyFromObject(desired), err)
	}
	return change, live, nil
}

// Remove deletes an object that the owner controls, and says whether it was there. Others' objects stay.
func (a *Applier) Remove(ctx context.Context, resource Resource, name types.NamespacedName, owner metav1.OwnerReference) (removed bool, err error) {
	key := object{resource, name}
	known, missing := a.recall(key)
	now := a.cfg.Clock.Now()
	if missing || (!known.wanted() && now.Before(known.until)) {
		return false, nil
	}
	objects := a.cfg.Dynamic.Resource(resource.GVR).Namespace(name.Namespace)
	live, err := objects.Get(ctx, name.Name, metav1.GetOptions{})
	if err == nil && owned.CheckOwner(resource.Kind, live, owner) == nil {
		uid := live.GetUID()
		err = objects.Delete(ctx, name.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		removed = err == nil
	}
	if err != nil && !isNoResource(err) {
		return false, fmt.Errorf("delete %s %s: %w", resource.Kind, name, err)
	}
	a.mu.Lock()
	a.trusted[key] = trust{until: now.Add(trustFor)}
	a.mu.Unlock()
	if removed && a.cfg.Heard != nil {
		a.cfg.Heard(resource.Kind, Removed)
	}
	return removed, nil
}

// recall gives what is known of an object, and whether its resource is known to be missing.
func (a *Applier) recall(key object) (known trust, missing bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	present, looked := a.present[key.Resource]
	return a.trusted[key], looked && !present
}

// begin notes that an object is being written.
func (a *Applier) begin(key object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.trusted[key]
	known.writing, known.event = true, nil
	a.trusted[key] = known
}

// lost notes that a resource is not there, so that the next look tells the listeners when it is.
func (a *Applier) lost(resource Resource) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.present[resource] {
		a.present[resource] = false
	}
}

// settle remembers how an object was left. Where the newest event that came meanwhile tells of another, somebody may have
// changed it since: the listeners look again.
func (a *Applier) settle(ctx context.Context, key object, t trust) {
	t.writing, t.event = false, nil
	a.mu.Lock()
	event := a.trusted[key].event
	altered := event != nil && t.altered(*event)
	if altered {
		t.until = time.Time{}
	}
	a.trusted[key] = t
	a.mu.Unlock()
	if !altered {
		return
	}
	for _, l := range a.hearers() {
		l.one(ctx, event.live)
	}
}

// checkOwner refuses an object that somebody else made: applying ours would overwrite it.
func checkOwner(kind string, live *unstructured.Unstructured, desired client.Object) error {
	owner := metav1.GetControllerOf(desired)
	if owner == nil {
		return fmt.Errorf("apply %s %s/%s: it has no controller; set its owner", kind, desired.GetNamespace(), desired.GetName())
	}
	return owned.CheckOwner(kind, live, *owner)
}

// Missing says whether the cluster was looked at and lacks a resource, so that nobody need make objects of it.
func (a *Applier) Missing(resource Resource) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	present, looked := a.present[resource]
	return looked && !present
}

// Settled says whether an object is known to be as it was applied last, so that nobody need make it to find that out.
func (a *Applier) Settled(resource Resource, name types.NamespacedName) bool {
	now := a.cfg.Clock.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.trusted[object{resource, name}]
	return known.wanted() && now.Before(known.until)
}

// Forget drops what is remembered of the objects of a name, of all kinds, that are not wanted any more.
func (a *Applier) Forget(name types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.trusted, func(key object, _ trust) bool { return key.NamespacedName == name })
}

// encode gives the object as it is applied, without status and without fields that the server fills, and its digest.
func encode(desired runtime.Object) (*unstructured.Unstructured, digest, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(desired)
	if err != nil {
		return nil, digest{}, err
	}
	unstructured.RemoveNestedField(fields, "status")
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	sum, err := digestOf(fields)
	return &unstructured.Unstructured{Object: fields}, sum, err
}

// isNoResource says that the resource itself is missing, not the namespace of the object.
func isNoResource(err error) bool {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces" {
		return false
	}
	return err != nil && (meta.IsNoMatchError(err) || apierrors.IsNotFound(err))
}

// differs names the first field, in the order of names, that desired sets and live has otherwise; empty when live holds
// all of desired: objects may hold more fields, such as defaults, lists must have the same length.
func differs(live, desired any, path string) string {
	switch want := desired.(type) {
	case map[string]any:
		have, ok := live.(map[string]any)
		if !ok {
			return path
		}
		for _, key := range slices.Sorted(maps.Keys(want)) {
			inner := key
			if path != "" {
				inner = path + "." + key
			}
			if at := differs(have[key], want[key], inner); at != "" {
				return at
			}
		}
		return ""
	case []any:
		have, ok := live.([]any)
		if !ok || len(have) != len(want) {
			return path
		}
		for i := range want {
			if at := differs(have[i], want[i], path+"["+strconv.Itoa(i)+"]"); at != "" {
				return at
			}
		}
		return ""
	default:
		if live == desired {
			return ""
		}
		return path
	}
}
