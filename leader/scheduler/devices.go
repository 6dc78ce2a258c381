package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/rules"
)

// claimShown is how long an event of a new claim may take before its reservation in memory is given up.
const claimShown = 2 * time.Minute

var errBindingTimeout = errors.New("device binding timeout")

// reserveDevices gives the pod's claims the devices of the plan, in memory.
func (s *Scheduler) reserveDevices(plan *rules.DevicePlan) {
	for _, claim := range plan.All() {
		if claim.Allocation != nil {
			s.listers.Devices.Reserve(claim.Claim.UID, claim.Allocation)
		}
	}
}

// deviceBinding writes the plan for one pod: the allocation of its claims and their reservation for it.
type deviceBinding struct {
	*Scheduler
	pod     *v1.Pod
	node    string
	plan    *rules.DevicePlan
	written []*resourceapi.ResourceClaim // reserved for the pod
	made    *resourceapi.ResourceClaim   // for its extended resources
}

// bind writes every claim, and waits until their devices are ready.
func (b *deviceBinding) bind(ctx context.Context) error {
	for _, claim := range b.plan.Claims {
		if resourceclaim.IsReservedForPod(b.pod, claim.Claim, false) {
			b.written = append(b.written, claim.Claim)
			continue
		}
		if err := b.write(ctx, claim); err != nil {
			return err
		}
	}
	if err := b.bindExtended(ctx); err != nil {
		return err
	}
	if !b.plan.Waits() {
		return nil
	}
	b.recorder(b.pod).Eventf(b.pod, nil, v1.EventTypeNormal, "BindingConditionsPending", "Scheduling",
		"waiting for binding conditions for device on node %s", b.node)
	return b.awaitDevices(ctx)
}

// bindExtended makes the claim for the pod's extended resources and names it in the pod's status.
func (b *deviceBinding) bindExtended(ctx context.Context) error {
	if b.plan.Extended == nil {
		return nil
	}
	inMemory := b.plan.Extended.Claim
	claim := inMemory.DeepCopy()
	claim.UID = ""
	made, err := b.cfg.Client.ResourceV1().ResourceClaims(b.pod.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create claim for extended resources: %w", err)
	}
	b.made = made
	b.listers.Devices.Rename(inMemory.UID, made.UID)
	if err := b.write(ctx, rules.ClaimPlan{Claim: made, Allocation: b.plan.Extended.Allocation}); err != nil {
		return err
	}
	status := map[string]any{"extendedResourceClaimStatus": v1.PodExtendedResourceClaimStatus{
		ResourceClaimName: made.Name, RequestMappings: b.plan.Mappings,
	}}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": b.pod.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = b.cfg.Client.CoreV1().Pods(b.pod.Namespace).Patch(ctx, b.pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("name claim for extended resources in the pod's status: %w", err)
	}
	return nil
}

// write writes allocation and reservation of a claim. Another writer's change of it is taken in and the write tried again.
func (b *deviceBinding) write(ctx context.Context, p rules.ClaimPlan) error {
	client, claim, fresh := b.cfg.Client.ResourceV1().ResourceClaims(b.pod.Namespace), p.Claim, true
	return retry.RetryOnConflict(retry.DefaultRetry, func() (err error) {
		if !fresh {
			if claim, err = client.Get(ctx, p.Claim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		fresh = false
		if claim.UID != p.Claim.UID || claim.DeletionTimestamp != nil {
			return fmt.Errorf("claim %s/%s got deleted in the meantime", claim.Namespace, claim.Name)
		}
		if p.Allocation != nil && claim.Status.Allocation != nil {
			return fmt.Errorf("claim %s/%s got allocated elsewhere in the meantime", claim.Namespace, claim.Name)
		}
		if p.Allocation == nil && claim.Status.Allocation == nil {
			return fmt.Errorf("claim %s/%s got deallocated elsewhere in the meantime", claim.Namespace, claim.Name)
		}
		if p.Allocation != nil && !slices.Contains(claim.Finalizers, resourceapi.Finalizer) {
			next := claim.DeepCopy()
			next.Finalizers = append(next.Finalizers, resourceapi.Finalizer)
			if claim, err = client.Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("add finalizer to claim %s/%s: %w", b.pod.Namespace, p.Claim.Name, err)
			}
		}
		updated, err := client.UpdateStatus(ctx, b.reserved(claim, p.Allocation), metav1.UpdateOptions{})
		if err != nil {
			return fmt.Errorf("reserve claim %s/%s: %w", b.pod.Namespace, p.Claim.Name, err)
		}
		b.written = append(b.written, updated)
		return nil
	})
}

// reserved returns the claim with its devices and the pod as a consumer.
func (b *deviceBinding) reserved(claim *resourceapi.ResourceClaim, a *resourceapi.AllocationResult) *resourceapi.ResourceClaim {
	claim = claim.DeepCopy()
	if a != nil {
		claim.Status.Allocation = a.DeepCopy()
	}
	if claim.Status.Allocation.AllocationTimestamp == nil {
		claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: b.cfg.Clock.Now()}
	}
	claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{
		Resource: "pods", Name: b.pod.Name, UID: b.pod.UID,
	})
	return claim
}

// awaitDevices waits until the devices of all claims are ready for the node.
func (b *deviceBinding) awaitDevices(ctx context.Context) error {
	limit := b.cfg.Clock.NewTimer(rules.BindingTimeout)
	defer limit.Stop()
	for {
		changed := b.listers.Devices.Wait()
		ready, err := b.devicesReady()
		if ready || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-limit.C():
			return errBindingTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// devicesReady reads the claims as events have shown them. One whose own writes are not shown yet is not ready.
func (b *deviceBinding) devicesReady() (bool, error) {
	for _, claim := range b.written {
		live, err := b.listers.Devices.Claim(claim.Namespace, claim.Name)
		if err != nil && !(apierrors.IsNotFound(err) && b.made != nil && claim.UID == b.made.UID) {
			return false, err
		}
		if err != nil {
			return false, nil // made a moment ago
		}
		if live.UID != claim.UID {
			return false, fmt.Errorf("claim %s/%s was replaced", claim.Namespace, claim.Name)
		}
		ready, err := rules.DevicesReady(live)
		if err != nil {
			return false, err
		}
		if !ready {
			if rules.LateDevices(live, b.cfg.Clock.Now()) {
				return false, fmt.Errorf("%w: claim=%s", errBindingTimeout, live.Name)
			}
			return false, nil
		}
	}
	return true, nil
}

// undo takes back what bind wrote, and what is reserved in memory. Claims keep their devices: the next attempt uses them, or gives
// them back.
func (b *deviceBinding) undo(ctx context.Context) {
	client := b.cfg.Client.ResourceV1().ResourceClaims(b.pod.Namespace)
	for _, claim := range b.written {
		if b.made != nil && claim.UID == b.made.UID {
			continue
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"status":{"reservedFor":[{"$patch":"delete","uid":%q}]}}`, claim.UID, b.pod.UID)
		_, err := client.Patch(ctx, claim.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			b.cfg.Logger.Warn("cannot take back the reservation of a claim, its controller does when the pod has gone",
				"namespace", claim.Namespace, "claim", claim.Name, "pod", b.pod.Name, "err", err)
		}
	}
	if b.made != nil {
		if err := b.deleteClaim(ctx, b.made); err != nil && ctx.Err() == nil {
			b.cfg.Logger.Warn("cannot delete the claim for extended resources, the pod's next attempt does",
				"namespace", b.pod.Namespace, "claim", b.made.Name, "err", err)
		}
	}
	b.release()
}

// release gives up the reservations in memory that no event has shown, and revives pods that wait for these devices.
func (b *deviceBinding) release() {
	for _, claim := range b.plan.All() {
		uid := claim.Claim.UID
		if b.made != nil && b.plan.Extended.Claim.UID == uid {
			uid = b.made.UID
		}
		if b.listers.Devices.Release(uid) {
			b.queue.Happened(queue.Event{Kind: queue.ResourceClaim, Action: queue.Delete | queue.Update, Old: claim.Claim})
		}
	}
}

// awaitShown waits until events have shown the claim that was made for extended resources: until then its devices are taken in memory
// only. A claim that was deleted meanwhile may never be shown.
func (b *deviceBinding) awaitShown(ctx context.Context) {
	if b.made == nil {
		return
	}
	limit := b.cfg.Clock.NewTimer(claimShown)
	defer limit.Stop()
	for {
		changed := b.listers.Devices.Wait()
		if !b.listers.Devices.Reserved(b.made.UID) {
			return
		}
		select {
		case <-changed:
		case <-limit.C():
			b.release()
			return
		case <-ctx.Done():
			return
		}
	}
}

// deleteClaim deletes a claim, which needs no finalizer any more.
func (s *Scheduler) deleteClaim(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	client, fresh := s.cfg.Client.ResourceV1().ResourceClaims(claim.Namespace), true
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		next := claim
		if !fresh {
			var err error
			if next, err = client.Get(ctx, claim.Name, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		fresh = false
		if !slices.Contains(next.Finalizers, resourceapi.Finalizer) {
			return nil
		}
		next = next.DeepCopy()
		next.Finalizers = slices.DeleteFunc(next.Finalizers, func(f string) bool { return f == resourceapi.Finalizer })
		_, err := client.Update(ctx, next, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		err = client.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(claim.UID))})
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// giveUp takes the devices from a claim that keeps its pod from every node.
func (s *Scheduler) giveUp(ctx context.Context, claim *resourceapi.ResourceClaim) {
	var err error
	if rules.IsExtended(claim) {
		err = s.deleteClaim(ctx, claim)
	} else {
		claim = claim.DeepCopy()
		claim.Status.ReservedFor, claim.Status.Allocation, claim.Status.Devices = nil, nil, nil
		_, err = s.cfg.Client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	}
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("cannot take the devices from a claim, the pod's next attempt tries again", "namespace", claim.Namespace, "claim", claim.Name, "err", err)
	}
}
