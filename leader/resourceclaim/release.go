package resourceclaim

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apply "k8s.io/client-go/applyconfigurations/core/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// syncClaim ends what the consumers of a claim have left behind.
func (c *controller) syncClaim(ctx context.Context, key workqueue.Key) error {
	claim, err := c.claims.ResourceClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	var left []resourceapi.ResourceClaimConsumerReference
	for _, ref := range claim.Status.ReservedFor {
		uses, err := c.uses(ctx, claim.Namespace, ref)
		if err != nil {
			return err
		}
		if uses {
			left = append(left, ref)
		}
	}
	ended, err := c.ownerEnded(claim)
	if err != nil {
		return err
	}
	return c.carryOut(ctx, claim, decide(claim, left, ended))
}

// uses reports whether a consumer may still use the claim. The API is asked before a pod counts as gone: devices that two pods have at
// once may be damaged.
func (c *controller) uses(ctx context.Context, namespace string, ref resourceapi.ResourceClaimConsumerReference) (bool, error) {
	if !isPod(ref) {
		return true, nil
	}
	pod, err := c.pods.Pods(namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) {
		pod, err = c.env.Client.CoreV1().Pods(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err != nil || pod.UID == ref.UID && !done(pod), err
}

// ownerEnded reports whether the pod that the claim was made for has ended, or was replaced. One that is gone does not count: the
// garbage collector sees to its claims.
func (c *controller) ownerEnded(claim *resourceapi.ResourceClaim) (bool, error) {
	ref := owner(claim)
	if ref.UID == "" {
		return false, nil
	}
	pod, err := c.pods.Pods(claim.Namespace).Get(ref.Name)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && (pod.UID != ref.UID || done(pod)), err
}

func (c *controller) carryOut(ctx context.Context, claim *resourceapi.ResourceClaim, p plan) (err error) {
	client := c.env.Client.ResourceV1().ResourceClaims(claim.Namespace)
	if p.status != nil {
		if claim, err = client.UpdateStatus(ctx, p.status, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("release consumers: %w", err)
		}
	}
	if p.dropFinalize {
		if claim, err = client.Update(ctx, withoutFinalizer(claim), metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("remove finalizer: %w", err)
		}
	}
	if p.remove {
		err = client.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete claim of ended pod: %w", err)
		}
	}
	return nil
}

// writeStatuses names the pod's claims in its status. Other writers' entries stay.
func (c *controller) writeStatuses(ctx context.Context, pod *v1.Pod, statuses []v1.PodResourceClaimStatus) error {
	status := apply.PodStatus()
	for _, s := range statuses {
		entry := apply.PodResourceClaimStatus().WithName(s.Name)
		entry.ResourceClaimName = s.ResourceClaimName
		status.WithResourceClaimStatuses(entry)
	}
	_, err := c.env.Client.CoreV1().Pods(pod.Namespace).ApplyStatus(ctx, apply.Pod(pod.Name, pod.Namespace).WithUID(pod.UID).WithStatus(status),
		metav1.ApplyOptions{FieldManager: manager, Force: true})
	if err != nil {
		return fmt.Errorf("name claims in the pod's status: %w", err)
	}
	return nil
}
