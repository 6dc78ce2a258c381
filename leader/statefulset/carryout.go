package statefulset

import (
	"context"
	"errors"
	"fmt"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/controllerref"
)

// errClaimEnding: a pod's claim is being deleted; a pod made now would come up with the old one and lose it.
var errClaimEnding = errors.New("claim is being deleted")

func (c *controller) execute(ctx context.Context, v view, p plan) error {
	fixed := controllerref.Parallel(len(p.fix), func(i int) error { return c.fix(ctx, v.set, p.fix[i]) })
	_, created := controllerref.SlowStart(len(p.create), func(i int) error { return c.create(ctx, v.set, p.create[i]) })
	if controllerref.NamespaceEnding(created) {
		created = nil
	}
	removed := controllerref.Parallel(len(p.remove), func(i int) error { return c.remove(ctx, v.set, p.remove[i]) })
	return errors.Join(fixed, created, removed)
}

// fix gives a pod that is there its labels and claims.
func (c *controller) fix(ctx context.Context, set *apps.StatefulSet, p *v1.Pod) error {
	ordinal := ordinalOf(set, p)
	if wanted(set, ordinal) && p.Status.Phase == v1.PodPending {
		if err := c.ensureClaims(ctx, set, ordinal); err != nil && !errors.Is(err, errClaimEnding) {
			return err
		}
	}
	if err := c.retain(ctx, set, p, ordinal); err != nil {
		return err
	}
	if identified(p, ordinal) {
		return nil
	}
	p = p.DeepCopy()
	p.Labels[apps.StatefulSetPodNameLabel], p.Labels[apps.PodIndexLabel] = p.Name, fmt.Sprint(ordinal)
	_, err := c.env.Client.CoreV1().Pods(p.Namespace).Update(ctx, p, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// retain keeps the owner references of a pod's claims by the retention policy.
func (c *controller) retain(ctx context.Context, set *apps.StatefulSet, p *v1.Pod, ordinal int) error {
	for _, want := range claims(set, ordinal) {
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(want.Name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		owners := claimOwners(set, p, ordinal, have.OwnerReferences)
		if equality.Semantic.DeepEqual(owners, have.OwnerReferences) {
			continue
		}
		have = have.DeepCopy()
		have.OwnerReferences = owners
		_, err = c.env.Client.CoreV1().PersistentVolumeClaims(have.Namespace).Update(ctx, have, metav1.UpdateOptions{})
		if err := ignoreGone(err); err != nil {
			return err
		}
	}
	return nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// ensureClaims makes the claims of an ordinal that are missing.
func (c *controller) ensureClaims(ctx context.Context, set *apps.StatefulSet, ordinal int) error {
	for _, want := range claims(set, ordinal) {
		have, err := c.claims.PersistentVolumeClaims(set.Namespace).Get(want.Name)
		if err == nil {
			if have.DeletionTimestamp != nil {
				return fmt.Errorf("%s: %w", want.Name, errClaimEnding)
			}
			continue
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		want.OwnerReferences = claimOwners(set, nil, ordinal, nil)
		_, err = c.env.Client.CoreV1().PersistentVolumeClaims(set.Namespace).Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			continue
		}
		if err != nil {
			c.env.Events.Eventf(reference(set), v1.EventTypeWarning, "FailedCreate", "create Claim %s for Pod %s in StatefulSet %s failed error: %v", want.Name, podName(set, ordinal), set.Name, err)
			return err
		}
		c.env.Events.Eventf(reference(set), v1.EventTypeNormal, "SuccessfulCreate", "create Claim %s Pod %s in StatefulSet %s success", want.Name, podName(set, ordinal), set.Name)
	}
	return nil
}

func (c *controller) create(ctx context.Context, set *apps.StatefulSet, p *v1.Pod) error {
	if err := c.ensureClaims(ctx, set, ordinalOf(set, p)); err != nil {
		return err
	}
	made, err := c.env.Client.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err), controllerref.NamespaceEnding(err):
		return err
	case err != nil:
		c.env.Events.Eventf(reference(set), v1.EventTypeWarning, "FailedCreate", "create Pod %s in StatefulSet %s failed error: %v", p.Name, set.Name, err)
		return err
	}
	c.pending.Wrote(set.UID, made)
	c.env.Events.Eventf(reference(set), v1.EventTypeNormal, "SuccessfulCreate", "create Pod %s in StatefulSet %s successful", p.Name, set.Name)
	return nil
}

func (c *controller) remove(ctx context.Context, set *apps.StatefulSet, p *v1.Pod) error {
	c.pending.Deleted(set.UID, p.UID)
	err := c.env.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	if err != nil {
		c.pending.Forget(set.UID)
		c.env.Events.Eventf(reference(set), v1.EventTypeWarning, "FailedDelete", "delete Pod %s in StatefulSet %s failed error: %v", p.Name, set.Name, err)
		return err
	}
	c.env.Events.Eventf(reference(set), v1.EventTypeNormal, "SuccessfulDelete", "delete Pod %s in StatefulSet %s successful", p.Name, set.Name)
	return nil
}
