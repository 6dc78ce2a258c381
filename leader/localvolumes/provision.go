package localvolumes

import (
	"context"
	"fmt"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-helpers/storage/volume"

	"github.com/balsahq/balsa/leader/workqueue"
)

// claim provisions for a claim, or has its volume grow.
func (c *controller) claim(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" {
		return c.grow(ctx, claim)
	}
	class, err := c.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if apierrors.IsNotFound(err) {
		return nil // the binder says so
	}
	if err != nil || !wanted(claim, class) {
		return err
	}
	node := claim.Annotations[volume.AnnSelectedNode]
	if node == "" {
		return c.choose(ctx, claim, class)
	}
	c.env.Events.Eventf(claim, v1.EventTypeNormal, "Provisioning", "External provisioner is provisioning volume for claim %q", claim.Namespace+"/"+claim.Name)
	err = c.provision(ctx, claim, class, node)
	if err == nil {
		c.env.Events.Eventf(claim, v1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume %s", volumeName(claim))
		return nil
	}
	if elsewhere := status.Code(err) == codes.ResourceExhausted || c.isGone(node); elsewhere {
		c.env.Events.Eventf(claim, v1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass %q: %v", class.Name, err)
		return c.reschedule(ctx, claim)
	}
	return c.failed(claim, class, err)
}

// choose takes the node with the most room, for a claim that waits for no pod. The choice is written before the node is
// asked, so that no second node is asked after an answer that was lost.
func (c *controller) choose(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	known, err := c.capacities.List(labels.Everything())
	if err != nil {
		return err
	}
	node := roomiest(class, claim.Spec.Resources.Requests[v1.ResourceStorage], known)
	if node == "" {
		return c.failed(claim, class, status.Error(codes.ResourceExhausted, "no node is known to have enough room"))
	}
	claim = claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, node)
	_, err = c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	return ignoreGone(err) // the update brings it back here
}

func (c *controller) failed(claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, err error) error {
	c.env.Events.Eventf(claim, v1.EventTypeWarning, "ProvisioningFailed", "failed to provision volume with StorageClass %q: %v", class.Name, err)
	return fmt.Errorf("provision: %w", err)
}

// isGone reports whether the cluster has no such node any more.
func (c *controller) isGone(node string) bool {
	_, err := c.nodes.Get(node)
	return apierrors.IsNotFound(err)
}

func (c *controller) provision(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass, node string) error {
	var made csipb.CreateVolumeResponse
	if err := c.call(ctx, node, "CreateVolume", createRequest(claim, class, node), &made); err != nil {
		return err
	}
	pv := persistentVolume(claim, class, made.Volume, node)
	_, err := c.env.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) { // its name is the claim's UID: one that is there is this one
		return err
	}
	c.loop.Add(thing{aNode, workqueue.Key{Name: node}})
	return nil
}

// reschedule has the scheduler choose another node.
func (c *controller) reschedule(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	claim = claim.DeepCopy()
	delete(claim.Annotations, volume.AnnSelectedNode)
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// volume reclaims a volume whose claim is gone.
func (c *controller) volume(ctx context.Context, v *v1.PersistentVolume) error {
	switch stepFor(v) {
	case guard:
		return c.setFinalizers(ctx, v, append(slices.Clone(v.Finalizers), finalizer))
	case release:
		return c.letGo(ctx, v)
	case reclaim:
		return c.reclaim(ctx, v)
	}
	return nil
}

func (c *controller) reclaim(ctx context.Context, v *v1.PersistentVolume) error {
	node := nodeOf(v)
	err := c.call(ctx, node, "DeleteVolume", &csipb.DeleteVolumeRequest{VolumeId: v.Spec.CSI.VolumeHandle}, &csipb.DeleteVolumeResponse{})
	if err != nil {
		gone := c.isGone(node)
		if gone {
			err = fmt.Errorf("the cluster has no node %s any more: its directory stays where that machine is, and goes when the node is back", node)
		}
		c.env.Events.Event(v, v1.EventTypeWarning, "VolumeFailedDelete", err.Error())
		if gone && v.DeletionTimestamp != nil { // an administrator deletes what has nowhere to be removed
			return c.letGo(ctx, v)
		}
		return fmt.Errorf("delete: %w", err)
	}
	c.loop.Add(thing{aNode, workqueue.Key{Name: node}})
	if v.DeletionTimestamp == nil {
		err := c.env.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
		if err != nil {
			return ignoreGone(err)
		}
		if v, err = c.env.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err != nil {
			return ignoreGone(err)
		}
	}
	return c.letGo(ctx, v)
}

func (c *controller) letGo(ctx context.Context, v *v1.PersistentVolume) error {
	return c.setFinalizers(ctx, v, slices.DeleteFunc(slices.Clone(v.Finalizers), func(f string) bool { return f == finalizer }))
}

func (c *controller) setFinalizers(ctx context.Context, v *v1.PersistentVolume, want []string) error {
	if slices.Equal(v.Finalizers, want) {
		return nil
	}
	v = v.DeepCopy()
	v.Finalizers = want
	_, err := c.env.Client.CoreV1().PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// grow has the volume of a claim grow to what the claim asks for.
func (c *controller) grow(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !ours(v) || v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		return err
	}
	if !grows(claim, v) {
		return c.finishGrowing(ctx, claim, v)
	}
	want := claim.Spec.Resources.Requests[v1.ResourceStorage]
	c.env.Events.Eventf(claim, v1.EventTypeNormal, "Resizing", "External resizer is resizing volume %s", v.Name)
	var got csipb.ControllerExpandVolumeResponse
	err = c.call(ctx, nodeOf(v), "ControllerExpandVolume", &csipb.ControllerExpandVolumeRequest{
		VolumeId: v.Spec.CSI.VolumeHandle, CapacityRange: &csipb.CapacityRange{RequiredBytes: want.Value()}}, &got)
	if err != nil {
		c.env.Events.Eventf(claim, v1.EventTypeWarning, "VolumeResizeFailed", "resize volume %q by resizer %q failed: %v", v.Name, Driver, err)
		if written := c.claimStatus(ctx, claim, cannotGrow(claim.Status, want, status.Code(err) == codes.ResourceExhausted)); written != nil {
			return written
		}
		return fmt.Errorf("expand: %w", err)
	}
	grown := v.DeepCopy()
	grown.Spec.Capacity[v1.ResourceStorage] = *resource.NewQuantity(got.CapacityBytes, resource.BinarySI)
	if grown, err = c.env.Client.CoreV1().PersistentVolumes().Update(ctx, grown, metav1.UpdateOptions{}); err != nil {
		return ignoreGone(err)
	}
	c.loop.Add(thing{aNode, workqueue.Key{Name: nodeOf(v)}})
	return c.finishGrowing(ctx, claim, grown)
}

// finishGrowing says in the claim what its volume has. A directory needs nothing of the node, so it is usable at once.
func (c *controller) finishGrowing(ctx context.Context, claim *v1.PersistentVolumeClaim, v *v1.PersistentVolume) error {
	size, has := v.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if claim.Status.Phase != v1.ClaimBound || size.Cmp(has) <= 0 && len(claim.Status.AllocatedResourceStatuses) == 0 {
		return nil
	}
	if err := c.claimStatus(ctx, claim, resized(claim.Status, size)); err != nil {
		return err
	}
	if size.Cmp(has) > 0 {
		c.env.Events.Event(claim, v1.EventTypeNormal, "VolumeResizeSuccessful", "Resize volume succeeded")
	}
	return nil
}

func (c *controller) claimStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, want v1.PersistentVolumeClaimStatus) error {
	if apiequality.Semantic.DeepEqual(claim.Status, want) {
		return nil
	}
	claim = claim.DeepCopy()
	claim.Status = want
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return ignoreGone(err)
}
