package garbage

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/retry"

	"github.com/balsahq/balsa/leader/controllerref"
)

func (c *controller) client(n *node) metadata.ResourceInterface {
	return c.metadata.Resource(n.resource).Namespace(n.namespace)
}

func (c *controller) carryOut(ctx context.Context, v view, a action) error {
	switch {
	case a.drop != nil:
		return c.rewrite(ctx, &v.node, func(o *metav1.PartialObjectMetadata) bool { return dropOwners(o, a.drop) })
	case a.delete == "":
		return nil
	}
	if a.unblock {
		if err := c.rewrite(ctx, &v.node, unblock); err != nil {
			return err
		}
	}
	// The version read last must be the one deleted: an owner may have been added meanwhile.
	now, err := c.client(&v.node).Get(ctx, v.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && now.UID != v.uid {
		return c.vanished(v.uid)
	}
	if err != nil || now.DeletionTimestamp != nil {
		return err
	}
	if !sameOwners(now.OwnerReferences, v.owners) {
		c.loop.AddAfter(v.uid, unsettledRetry) // the graph is behind; its watch will show the change
		return nil
	}
	err = c.client(&v.node).Delete(ctx, v.name, metav1.DeleteOptions{
		PropagationPolicy: &a.delete,
		Preconditions:     &metav1.Preconditions{UID: &v.uid, ResourceVersion: &now.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.OwnerReference) bool { return x.UID == y.UID })
}

// vanished handles an object the API does not have although the graph does.
func (c *controller) vanished(uid types.UID) error {
	for _, d := range c.graph.remove(uid) {
		c.loop.Add(d)
	}
	return nil
}

// orphanDependents makes every dependent forget the owner, then lets the owner go.
func (c *controller) orphanDependents(ctx context.Context, v view) error {
	ours := map[types.UID]bool{v.uid: true}
	err := controllerref.Parallel(len(v.dependents), func(i int) error {
		d := &v.dependents[i]
		if !d.seen {
			return nil
		}
		return c.rewrite(ctx, d, func(o *metav1.PartialObjectMetadata) bool { return dropOwners(o, ours) })
	})
	if err != nil {
		return err
	}
	return c.rewrite(ctx, &v.node, dropFinalizer(metav1.FinalizerOrphanDependents))
}

// finishForeground lets the owner go once no dependent blocks it, and looks after those that do.
func (c *controller) finishForeground(ctx context.Context, v view) error {
	blocking := blockers(v)
	if len(blocking) == 0 {
		return c.rewrite(ctx, &v.node, dropFinalizer(metav1.FinalizerDeleteDependents))
	}
	for i := range blocking {
		if !blocking[i].waiting() {
			c.loop.Add(blocking[i].uid)
		}
	}
	return nil
}

// rewrite changes the metadata of a live object by a function that reports whether it changed anything. The patch carries
// the version it was made from.
func (c *controller) rewrite(ctx context.Context, n *node, change func(*metav1.PartialObjectMetadata) bool) error {
	client := c.client(n)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := client.Get(ctx, n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if o.UID != n.uid || !change(o) {
			return nil
		}
		patch, err := metadataPatch(o)
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, n.name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
	if apierrors.IsNotFound(err) || errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// metadataPatch replaces owner references and finalizers by those of o, if the object is still at o's version.
func metadataPatch(o *metav1.PartialObjectMetadata) ([]byte, error) {
	refs, finalizers := o.OwnerReferences, o.Finalizers
	if refs == nil {
		refs = []metav1.OwnerReference{}
	}
	if finalizers == nil {
		finalizers = []string{}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.UID, "resourceVersion": o.ResourceVersion, "ownerReferences": refs, "finalizers": finalizers,
	}})
}

func dropOwners(o *metav1.PartialObjectMetadata, uids map[types.UID]bool) bool {
	before := len(o.OwnerReferences)
	o.OwnerReferences = slices.DeleteFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return uids[r.UID] })
	return len(o.OwnerReferences) != before
}

func dropFinalizer(name string) func(*metav1.PartialObjectMetadata) bool {
	return func(o *metav1.PartialObjectMetadata) bool {
		before := len(o.Finalizers)
		o.Finalizers = slices.DeleteFunc(o.Finalizers, func(f string) bool { return f == name })
		return len(o.Finalizers) != before
	}
}

func unblock(o *metav1.PartialObjectMetadata) bool {
	changed := false
	for i := range o.OwnerReferences {
		if blocks(o.OwnerReferences[i]) {
			no := false
			o.OwnerReferences[i].BlockOwnerDeletion = &no
			changed = true
		}
	}
	return changed
}
