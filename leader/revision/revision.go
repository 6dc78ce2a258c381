// Package revision keeps the history of pod templates that DaemonSets and StatefulSets roll back to: one ControllerRevision
// per template an owner has had.
//
// It decides nothing about pods. Its callers watch the ControllerRevisions; it creates, renumbers, adopts and deletes those
// their owner controls, and touches no other. It starts no goroutine and holds no lock.
package revision

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"sort"
	"strconv"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/controllerref"
)

// ErrCollision: the name for a new revision is taken by another template. The owner's collision count has to grow.
var ErrCollision = errors.New("revision name is taken")

// History is the revisions of one owner.
type History struct {
	Client     kubernetes.Interface
	Cache      cache.Indexer // of ControllerRevisions, indexed by controllerref.Index
	Owner      metav1.Object
	Kind       schema.GroupVersionKind
	Selector   labels.Selector
	Template   *v1.PodTemplateSpec
	Labels     map[string]string // of a new revision
	HashLabel  string            // under which a revision carries its hash
	Collisions *int32            // from the owner's status
	Fresh      func(ctx context.Context) (metav1.Object, error)
}

// Sync finds or makes the revision of the owner's present template, numbers it above all others, and returns it with the
// others in the order of their numbers.
func (h *History) Sync(ctx context.Context) (current *apps.ControllerRevision, old []*apps.ControllerRevision, err error) {
	all, err := h.claim(ctx)
	if err != nil {
		return nil, nil, err
	}
	data, err := Patch(h.Template)
	if err != nil {
		return nil, nil, err
	}
	var same []*apps.ControllerRevision
	for _, r := range all {
		if equal(r.Data.Raw, data) {
			same = append(same, r)
		} else {
			old = append(old, r)
		}
	}
	next := int64(1)
	for _, r := range old {
		next = max(next, r.Revision+1)
	}
	if len(same) == 0 {
		current, err = h.create(ctx, data, next)
		return current, old, err
	}
	current = same[len(same)-1]
	old = append(old, same[:len(same)-1]...)
	sortByNumber(old)
	if current.Revision < next {
		current = current.DeepCopy()
		current.Revision = next
		current, err = h.Client.AppsV1().ControllerRevisions(current.Namespace).Update(ctx, current, metav1.UpdateOptions{})
	}
	return current, old, err
}

func (h *History) claim(ctx context.Context) ([]*apps.ControllerRevision, error) {
	claimer := controllerref.Claimer[*apps.ControllerRevision]{
		Owner: h.Owner, Kind: h.Kind, Selector: h.Selector, Fresh: h.Fresh,
		Patch: func(ctx context.Context, r *apps.ControllerRevision, patch []byte) error {
			_, err := h.Client.AppsV1().ControllerRevisions(r.Namespace).Patch(ctx, r.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}
	mine, err := claimer.Claim(ctx, controllerref.Candidates[*apps.ControllerRevision](h.Cache, h.Owner))
	sortByNumber(mine)
	return mine, err
}

func sortByNumber(all []*apps.ControllerRevision) {
	sort.Slice(all, func(i, j int) bool {
		if all[i].Revision != all[j].Revision {
			return all[i].Revision < all[j].Revision
		}
		return all[i].Name < all[j].Name
	})
}

func (h *History) create(ctx context.Context, data []byte, number int64) (*apps.ControllerRevision, error) {
	hash := hashOf(data, h.Collisions)
	r := &apps.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: h.Owner.GetNamespace(), Name: h.Owner.GetName() + "-" + hash,
			Labels: maps.Clone(h.Labels), Annotations: annotations(h.Owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(h.Owner, h.Kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[h.HashLabel] = hash
	made, err := h.Client.AppsV1().ControllerRevisions(r.Namespace).Create(ctx, r, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return made, err
	}
	have, err := h.Client.AppsV1().ControllerRevisions(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	if metav1.IsControlledBy(have, h.Owner) && equal(have.Data.Raw, data) {
		return have, nil // ours; the cache does not show it yet
	}
	return nil, fmt.Errorf("%s/%s: %w", r.Namespace, r.Name, ErrCollision)
}

func annotations(of map[string]string) map[string]string {
	out := maps.Clone(of)
	delete(out, v1.LastAppliedConfigAnnotation)
	return out
}

// Trim deletes the oldest revisions of old beyond limit; those live says are still in use stay.
func (h *History) Trim(ctx context.Context, old []*apps.ControllerRevision, limit int, live func(*apps.ControllerRevision) bool) error {
	var idle []*apps.ControllerRevision
	for _, r := range old {
		if !live(r) {
			idle = append(idle, r)
		}
	}
	for i := range max(0, len(idle)-limit) {
		err := h.Client.AppsV1().ControllerRevisions(idle[i].Namespace).Delete(ctx, idle[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// Patch is the strategic merge patch that gives an owner this template: what kubectl rollout undo applies.
func Patch(t *v1.PodTemplateSpec) ([]byte, error) {
	encoded, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encoding the pod template: %w", err)
	}
	var template map[string]any
	if err := json.Unmarshal(encoded, &template); err != nil {
		return nil, err
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// Template is the pod template a revision holds.
func Template(r *apps.ControllerRevision) (*v1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template v1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &patch); err != nil {
		return nil, fmt.Errorf("revision %s/%s: %w", r.Namespace, r.Name, err)
	}
	return &patch.Spec.Template, nil
}

// equal compares two patches; the API may have written one of them in its own order of fields.
func equal(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	ca, err1 := canonical(a)
	cb, err2 := canonical(b)
	return err1 == nil && err2 == nil && bytes.Equal(ca, cb)
}

func canonical(in []byte) ([]byte, error) {
	var v any
	if err := json.Unmarshal(in, &v); err != nil {
		return nil, err
	}
	return json.Marshal(v)
}

func hashOf(data []byte, collisions *int32) string {
	h := fnv.New32a()
	h.Write(data)
	if collisions != nil {
		h.Write([]byte(strconv.Itoa(int(*collisions))))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}
