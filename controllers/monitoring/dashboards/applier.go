package dashboards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers/owned"
	"github.com/sluice-dev/sluice/monitoring/dashboard"
)

// Applier keeps the ConfigMaps of sets as they should be. It remembers which version of each object was right, not what is in
// it: the cache needs the objects' metadata alone, and a set that nobody touches costs neither a read nor a write, nor is it
// built again. All methods may be called at once.
type Applier struct {
	// Client writes, and reads metadata of ConfigMaps from a cache that may be late.
	Client client.Client
	// Live reads from the API server.
	Live    client.Reader
	Options Options

	mu    sync.Mutex
	known map[setKey]*knownSet
}

type setKey struct{ namespace, tenant string }

// knownSet is how a set was left. Its lock is held while the set is applied, so that two services of a tenant don't both make
// the same object.
type knownSet struct {
	sync.Mutex
	inputs   string            // what the set was made from; empty when something was not right
	versions map[string]string // resource versions by name of object
	anchor   *corev1.ConfigMap // its name and UID
}

// Change is what was done with one object, if anything.
type Change struct {
	Name string
	// Restored says that somebody else had changed or deleted it.
	Restored bool
	// Removed says that nobody wants it any more.
	Removed bool
}

// Apply brings the ConfigMaps of a set in line, or removes them when nobody owns the set. It gives the anchor, nil when there is
// none, and what changed. What fails doesn't hold the rest up; an object of somebody else with one of the names is an
// owned.NotOwnedError.
func (a *Applier) Apply(ctx context.Context, s Set) (anchor *corev1.ConfigMap, changes []Change, err error) {
	known := a.recall(s)
	known.Lock()
	defer known.Unlock()
	if len(s.Owners) == 0 {
		changes, err = a.remove(ctx, s, known)
		return nil, changes, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the dashboards of tenant %s: %w", s.Tenant, err)
	}
	if known.inputs == string(text) && a.untouched(ctx, s, known) {
		return known.anchor, nil, nil
	}
	again := known.inputs == string(text)
	known.inputs = "" // until everything is right

	anchor, change, err := a.write(ctx, Anchor(s), again, known)
	if err != nil {
		return nil, nil, err
	}
	changes = add(changes, change)
	list, err := ConfigMaps(s, a.Options)
	if err != nil {
		return anchor, changes, err
	}
	var failures []error
	for _, want := range list {
		want.OwnerReferences = ownedBy(anchor)
		_, change, err := a.write(ctx, want, again, known)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		changes = add(changes, change)
	}
	known.anchor = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: anchor.Name, Namespace: anchor.Namespace, UID: anchor.UID}}
	if len(failures) == 0 {
		known.inputs = string(text)
	}
	return known.anchor, changes, errors.Join(failures...)
}

// Foreign lists the tenants other than tenant whose sets in the namespace are owned by the service: it was theirs before.
func (a *Applier) Foreign(ctx context.Context, namespace, tenant string, service types.UID) (tenants []string, err error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMapList"))
	if err := a.Client.List(ctx, list, client.InNamespace(namespace), client.MatchingLabels{v1alpha1.LabelComponent: v1alpha1.ComponentDashboards}); err != nil {
		return nil, fmt.Errorf("list the dashboards of namespace %s: %w", namespace, err)
	}
	for _, object := range list.Items {
		of := object.Labels[v1alpha1.LabelTenant]
		if of != tenant && slices.ContainsFunc(object.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == service }) {
			tenants = append(tenants, of)
		}
	}
	slices.Sort(tenants)
	return slices.Compact(tenants), nil
}

func (a *Applier) recall(s Set) *knownSet {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known == nil {
		a.known = map[setKey]*knownSet{}
	}
	key := setKey{s.Namespace, s.Tenant}
	if a.known[key] == nil {
		a.known[key] = &knownSet{versions: map[string]string{}}
	}
	return a.known[key]
}

// names are those of all ConfigMaps of a set, the anchor's first.
func (s Set) names() []string {
	list := []string{s.anchorName()}
	for _, subject := range dashboard.Subjects() {
		list = append(list, s.objectName(subject.Key))
	}
	return list
}

// untouched says whether the cache has all objects of a set in the version in which they were left.
func (a *Applier) untouched(ctx context.Context, s Set, known *knownSet) bool {
	for _, name := range s.names() {
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		if err := a.Client.Get(ctx, types.NamespacedName{Namespace: s.Namespace, Name: name}, live); err != nil || live.ResourceVersion != known.versions[name] {
			return false
		}
	}
	return true
}

// write makes one object as wanted and gives it as the API server has it. again says that nothing else is wanted than before.
func (a *Applier) write(ctx context.Context, want *corev1.ConfigMap, again bool, known *knownSet) (*corev1.ConfigMap, *Change, error) {
	key := client.ObjectKeyFromObject(want)
	stamp(want)
	live := &corev1.ConfigMap{}
	err := a.Live.Get(ctx, key, live)
	if apierrors.IsNotFound(err) {
		if err := a.Client.Create(ctx, want); err != nil {
			return nil, nil, fmt.Errorf("create ConfigMap %s: %w", key, err)
		}
		known.versions[key.Name] = want.ResourceVersion
		return want, &Change{Name: key.Name, Restored: again}, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	if err := ours(live, want); err != nil {
		return nil, nil, err
	}
	merged := merge(want, live)
	if equality.Semantic.DeepEqual(live, merged) {
		known.versions[key.Name] = live.ResourceVersion
		return live, nil, nil
	}
	// What is wanted now is what was applied last, by this or an earlier process: somebody else came between. Owners may have
	// changed by themselves.
	restored := again || live.Annotations[v1alpha1.AnnotationApplied] == want.Annotations[v1alpha1.AnnotationApplied]
	live.OwnerReferences = merged.OwnerReferences
	restored = restored && !equality.Semantic.DeepEqual(live, merged)
	if err := a.Client.Update(ctx, merged); err != nil {
		return nil, nil, fmt.Errorf("update ConfigMap %s: %w", key, err)
	}
	known.versions[key.Name] = merged.ResourceVersion
	return merged, &Change{Name: key.Name, Restored: restored}, nil
}

// remove deletes what there is of a set that nobody wants. The dashboards go before the anchor, which finds them.
func (a *Applier) remove(ctx context.Context, s Set, known *knownSet) (changes []Change, err error) {
	defer a.forget(s)
	var failures []error
	for _, name := range slices.Backward(s.names()) {
		key := types.NamespacedName{Namespace: s.Namespace, Name: name}
		live := &metav1.PartialObjectMetadata{}
		live.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		err := a.Client.Get(ctx, key, live)
		if apierrors.IsNotFound(err) && known.versions[name] == "" {
			continue
		}
		if err == nil && (live.DeletionTimestamp != nil || live.Labels[v1alpha1.LabelComponent] != v1alpha1.ComponentDashboards || live.Labels[v1alpha1.LabelTenant] != s.Tenant) {
			continue
		}
		gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Namespace}}
		err = a.Client.Delete(ctx, gone)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			failures = append(failures, fmt.Errorf("delete ConfigMap %s: %w", key, err))
		default:
			changes = append(changes, Change{Name: name, Removed: true})
		}
	}
	return changes, errors.Join(failures...)
}

func (a *Applier) forget(s Set) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.known, setKey{s.Namespace, s.Tenant})
}

// ours refuses an object that somebody else made.
func ours(live, want *corev1.ConfigMap) error {
	for _, label := range []string{"app.kubernetes.io/managed-by", v1alpha1.LabelComponent, v1alpha1.LabelTenant} {
		if live.Labels[label] != want.Labels[label] && live.Annotations[v1alpha1.AnnotationApplied] == "" {
			return &owned.NotOwnedError{Kind: "ConfigMap", Name: client.ObjectKeyFromObject(live).String(), Owner: "nobody"}
		}
	}
	return nil
}

// stamp notes on an object what it was made from. Owners come and go and are left out.
func stamp(want *corev1.ConfigMap) {
	parts := []string{want.Name}
	for _, m := range []map[string]string{want.Labels, want.Annotations, want.Data} {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			parts = append(parts, key, m[key])
		}
	}
	annotations := maps.Clone(want.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[v1alpha1.AnnotationApplied] = hash(strings.Join(parts, "\x00"))[:16]
	want.Annotations = annotations
}

// merge lays what is wanted over the live object: labels and annotations of others stay, so do owners that are no services
// and no anchors.
func merge(want, live *corev1.ConfigMap) *corev1.ConfigMap {
	merged := live.DeepCopy()
	merged.Data, merged.BinaryData, merged.Immutable = want.Data, nil, nil
	over := func(under, over map[string]string) map[string]string {
		all := map[string]string{}
		maps.Copy(all, under)
		maps.Copy(all, over)
		return all
	}
	merged.Labels, merged.Annotations = over(live.Labels, want.Labels), over(live.Annotations, want.Annotations)
	merged.OwnerReferences = slices.Clone(want.OwnerReferences)
	for _, owner := range live.OwnerReferences {
		if owner.Kind != "InferenceService" && owner.Kind != "ConfigMap" && (owner.Controller == nil || !*owner.Controller) {
			merged.OwnerReferences = append(merged.OwnerReferences, owner)
		}
	}
	return merged
}

func add(changes []Change, change *Change) []Change {
	if change == nil {
		return changes
	}
	return append(changes, *change)
}
