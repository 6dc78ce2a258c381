package volumes

import (
	"context"
	"errors"
	"reflect"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// thing is a key of the binder's queue: a claim, or a volume (which has no namespace).
type thing struct {
	key    workqueue.Key
	volume bool
}

type binder struct {
	env     workqueue.Env
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	loop    *workqueue.Loop[thing]
}

// NewBinder returns the controller that binds claims and volumes.
func NewBinder(env workqueue.Env) (workqueue.Runner, error) {
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().StorageClasses()
	c := &binder{env: env, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(), classes: classes.Lister()}
	c.loop = workqueue.NewLoop(env, 1, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, core.PersistentVolumeClaims().Informer(), c.claimChanged),
		workqueue.Watch(c.loop, core.PersistentVolumes().Informer(), c.volumeChanged),
		workqueue.Watch(c.loop, classes.Informer(), func(_, _ *storagev1.StorageClass) { c.queueUnbound("") }),
	)
}

func (c *binder) claimChanged(old, now *v1.PersistentVolumeClaim) {
	latest := workqueue.Newest(old, now)
	if now != nil {
		c.loop.Add(thing{key: workqueue.KeyOf(now)})
	}
	if latest.Spec.VolumeName != "" {
		c.loop.Add(thing{key: workqueue.Key{Name: latest.Spec.VolumeName}, volume: true})
	}
}

func (c *binder) volumeChanged(old, now *v1.PersistentVolume) {
	v := workqueue.Newest(old, now)
	c.loop.Add(thing{key: workqueue.Key{Name: v.Name}, volume: true})
	if r := v.Spec.ClaimRef; r != nil {
		c.loop.Add(thing{key: workqueue.Key{Namespace: r.Namespace, Name: r.Name}})
	} else if now != nil {
		c.queueUnbound(v.Name)
	}
}

// queueUnbound looks at the claims that may be waiting for just what has turned up: those that ask for any volume, and
// those that ask for this one.
func (c *binder) queueUnbound(volume string) {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	for _, claim := range all {
		if claim.Spec.VolumeName == "" || claim.Spec.VolumeName == volume {
			c.loop.Add(thing{key: workqueue.KeyOf(claim)})
		}
	}
}

func (c *binder) reconcile(ctx context.Context, t thing) error {
	if t.volume {
		v, err := c.volumes.Get(t.key.Name)
		if err != nil {
			return ignoreGone(err)
		}
		return c.volume(ctx, v)
	}
	claim, err := c.claims.PersistentVolumeClaims(t.key.Namespace).Get(t.key.Name)
	if err != nil {
		return ignoreGone(err)
	}
	if claim.Annotations[annBindCompleted] != "" {
		return c.bound(ctx, claim)
	}
	return c.unbound(ctx, claim)
}

// bound checks on a claim that has its volume.
func (c *binder) bound(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	v, err := c.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) || err == nil && !boundTo(v, claim) && v.Spec.ClaimRef != nil {
		c.env.Events.Event(claimReference(claim), v1.EventTypeWarning, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
		return c.claimStatus(ctx, claim, v1.PersistentVolumeClaimStatus{Phase: v1.ClaimLost})
	}
	if err != nil {
		return err
	}
	return c.bind(ctx, v, claim)
}

// unbound finds a volume for a claim, or says why it waits.
func (c *binder) unbound(ctx context.Context, claim *v1.PersistentVolumeClaim) error {
	if claim.DeletionTimestamp != nil {
		return nil
	}
	if name := claim.Spec.VolumeName; name != "" {
		v, err := c.volumes.Get(name)
		if apierrors.IsNotFound(err) {
			return c.claimStatus(ctx, claim, v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending})
		}
		if err != nil {
			return err
		}
		if v.Spec.ClaimRef != nil && !boundTo(v, claim) {
			return c.claimStatus(ctx, claim, v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending})
		}
		return c.bind(ctx, v, claim)
	}
	class, err := c.class(claim)
	if err != nil {
		return err
	}
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return err
	}
	v := choose(claim, all)
	if v != nil && (!waits(claim, class) || boundTo(v, claim)) {
		return c.bind(ctx, v, claim)
	}
	if v == nil {
		if given, err := c.giveClass(ctx, claim); given || err != nil {
			return err
		}
	}
	return c.pending(ctx, claim, class)
}

// giveClass names the default class in a claim that was made before there was one (KEP-3333).
func (c *binder) giveClass(ctx context.Context, claim *v1.PersistentVolumeClaim) (given bool, err error) {
	if !classless(claim) {
		return false, nil
	}
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	class := defaultClass(all)
	if class == nil {
		return false, nil
	}
	claim = claim.DeepCopy()
	claim.Spec.StorageClassName = &class.Name
	_, err = c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
	return true, ignoreGone(err) // the update brings it back here
}

func (c *binder) class(claim *v1.PersistentVolumeClaim) (*storagev1.StorageClass, error) {
	name := className(claim)
	if name == "" {
		return nil, nil
	}
	class, err := c.classes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	return class, err
}

// pending tells the user, and an external provisioner, what the claim waits for.
func (c *binder) pending(ctx context.Context, claim *v1.PersistentVolumeClaim, class *storagev1.StorageClass) error {
	ref := claimReference(claim)
	switch {
	case waits(claim, class):
		c.env.Events.Event(ref, v1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	case class == nil && className(claim) == "":
		c.env.Events.Event(ref, v1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	case class == nil:
		c.env.Events.Eventf(ref, v1.EventTypeWarning, "ProvisioningFailed", "storageclass.storage.k8s.io %q not found", className(claim))
	case class.Provisioner == noProvisioner:
		c.env.Events.Event(ref, v1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and its storage class does not provision any")
	default:
		c.env.Events.Eventf(ref, v1.EventTypeNormal, "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered.", class.Provisioner)
		if claim.Annotations[annProvisioner] != class.Provisioner {
			claim = claim.DeepCopy()
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisioner, class.Provisioner)
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annProvisionerBeta, class.Provisioner)
			_, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{})
			return ignoreGone(err) // the update brings it back here
		}
	}
	return c.claimStatus(ctx, claim, v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending})
}

// bind makes volume and claim name each other, the volume first: a volume given away is never given away again, even if
// we stop in between.
func (c *binder) bind(ctx context.Context, v *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) error {
	client := c.env.Client.CoreV1()
	if v.Spec.ClaimRef == nil || v.Spec.ClaimRef.UID != claim.UID {
		byUs := v.Spec.ClaimRef == nil
		v = v.DeepCopy()
		v.Spec.ClaimRef = &v1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion}
		if byUs {
			metav1.SetMetaDataAnnotation(&v.ObjectMeta, annBoundByUs, "yes")
		}
		var err error
		if v, err = client.PersistentVolumes().Update(ctx, v, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	if err := c.volumeStatus(ctx, v, v1.VolumeBound, ""); err != nil {
		return err
	}
	if claim.Spec.VolumeName != v.Name || claim.Annotations[annBindCompleted] == "" {
		byUs := claim.Spec.VolumeName == ""
		claim = claim.DeepCopy()
		claim.Spec.VolumeName = v.Name
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annBindCompleted, "yes")
		if byUs {
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, annBoundByUs, "yes")
		}
		var err error
		if claim, err = client.PersistentVolumeClaims(claim.Namespace).Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	status := *claim.Status.DeepCopy()
	status.Phase, status.AccessModes = v1.ClaimBound, v.Spec.AccessModes
	if status.Capacity == nil || claim.Status.Phase != v1.ClaimBound {
		status.Capacity = v1.ResourceList{v1.ResourceStorage: v.Spec.Capacity[v1.ResourceStorage]}
	}
	return c.claimStatus(ctx, claim, status)
}

func (c *binder) claimStatus(ctx context.Context, claim *v1.PersistentVolumeClaim, status v1.PersistentVolumeClaimStatus) error {
	if reflect.DeepEqual(claim.Status, status) || status.Phase != v1.ClaimBound && claim.Status.Phase == status.Phase {
		return nil
	}
	claim = claim.DeepCopy()
	claim.Status = status
	_, err := c.env.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
	return ignoreGone(err)
}

func (c *binder) volumeStatus(ctx context.Context, v *v1.PersistentVolume, phase v1.PersistentVolumePhase, message string) error {
	if v.Status.Phase == phase && v.Status.Message == message {
		return nil
	}
	v = v.DeepCopy()
	v.Status.Phase, v.Status.Message = phase, message
	_, err := c.env.Client.CoreV1().PersistentVolumes().UpdateStatus(ctx, v, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// volume keeps the phase of a volume, and reclaims it when its claim is gone.
func (c *binder) volume(ctx context.Context, v *v1.PersistentVolume) error {
	r := v.Spec.ClaimRef
	if r == nil || r.UID == "" {
		return c.volumeStatus(ctx, v, v1.VolumeAvailable, "")
	}
	claim, err := c.claims.PersistentVolumeClaims(r.Namespace).Get(r.Name)
	if apierrors.IsNotFound(err) || err == nil && claim.UID != r.UID {
		// Before a volume counts as free of its claim, the API is asked.
		claim, err = c.env.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && claim.UID == r.UID {
		return nil // the claim's own turn keeps both in line
	}
	switch reclaimActionOf(v) {
	case release:
		return c.volumeStatus(ctx, v, v1.VolumeReleased, "")
	case remove:
		if err := c.volumeStatus(ctx, v, v1.VolumeReleased, ""); err != nil || v.DeletionTimestamp != nil {
			return err
		}
		err := c.env.Client.CoreV1().PersistentVolumes().Delete(ctx, v.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(v.UID))})
		return ignoreGone(err)
	}
	return nil
}

func claimReference(c *v1.PersistentVolumeClaim) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name, UID: c.UID, ResourceVersion: c.ResourceVersion}
}
