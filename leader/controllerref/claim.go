package controllerref

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Verdict says what an owner does about an object.
type Verdict uint8

const (
	Ignore  Verdict = iota // another controller owns it, or it is not wanted
	Keep                   // the owner controls it already
	Adopt                  // it has no controller and matches: adopt it
	Release                // the owner controls it, but it no longer matches: release it
)

// Decide returns what owner has to do with obj. It neither adopts nor releases while the owner is being deleted, and never
// adopts an object that is being deleted.
func Decide(owner metav1.Object, selector labels.Selector, obj metav1.Object) Verdict {
	matches := selector.Matches(labels.Set(obj.GetLabels()))
	leaving := owner.GetDeletionTimestamp() != nil
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		switch {
		case ref.UID != owner.GetUID():
			return Ignore
		case matches:
			return Keep
		case leaving:
			return Ignore
		}
		return Release
	}
	if leaving || !matches || obj.GetDeletionTimestamp() != nil || obj.GetNamespace() != owner.GetNamespace() {
		return Ignore
	}
	return Adopt
}

// Claimer carries out what Decide decides. Fresh reads the owner from the API, past every cache; it is asked once per
// Claim, and only before the first adoption, so that a stale cache cannot make an owner that is gone adopt anything.
type Claimer[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	Fresh    func(ctx context.Context) (metav1.Object, error)
	Patch    func(ctx context.Context, obj T, patch []byte) error
}

// Claim returns those of objs that belong to the owner once every adoption and release has been made. Errors are joined;
// what could be claimed is returned beside them.
func (c Claimer[T]) Claim(ctx context.Context, objs []T) ([]T, error) {
	var mine []T
	var errs []error
	var adoptable error
	asked := false
	for _, o := range objs {
		switch Decide(c.Owner, c.Selector, o) {
		case Keep:
			mine = append(mine, o)
		case Release:
			if err := c.release(ctx, o); err != nil {
				errs = append(errs, err)
			}
		case Adopt:
			if !asked {
				asked, adoptable = true, c.mayAdopt(ctx)
				if adoptable != nil {
					errs = append(errs, adoptable)
				}
			}
			if adoptable != nil {
				continue
			}
			switch err := c.adopt(ctx, o); {
			case err == nil:
				mine = append(mine, o)
			case !apierrors.IsNotFound(err):
				errs = append(errs, err)
			}
		}
	}
	return mine, errors.Join(errs...)
}

func (c Claimer[T]) mayAdopt(ctx context.Context) error {
	fresh, err := c.Fresh(ctx)
	if err != nil {
		return fmt.Errorf("may not adopt: reading the owner: %w", err)
	}
	if fresh.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("may not adopt: %s %s/%s was replaced (uid %s, now %s)", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), c.Owner.GetUID(), fresh.GetUID())
	}
	if fresh.GetDeletionTimestamp() != nil {
		return fmt.Errorf("may not adopt: %s %s/%s is being deleted", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	return nil
}

func (c Claimer[T]) adopt(ctx context.Context, o T) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             o.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}})
	if err != nil {
		return err
	}
	return c.Patch(ctx, o, patch)
}

func (c Claimer[T]) release(ctx context.Context, o T) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid":             o.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}})
	if err != nil {
		return err
	}
	err = c.Patch(ctx, o, patch)
	// Gone, or replaced by another of the same name (the uid in the patch does not fit): released either way.
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return err
}
