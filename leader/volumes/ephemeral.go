package volumes

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/balsahq/balsa/leader/workqueue"
)

type ephemeralClaims struct {
	env    workqueue.Env
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
	loop   *workqueue.Loop[workqueue.Key]
}

// NewEphemeral returns the controller that makes the claims of pods' generic ephemeral volumes (KEP-1698). The garbage
// collector removes them with the pod.
func NewEphemeral(env workqueue.Env, workers int) (workqueue.Runner, error) {
	pods, claims := env.Informers.Core().V1().Pods(), env.Informers.Core().V1().PersistentVolumeClaims()
	c := &ephemeralClaims{env: env, pods: pods.Lister(), claims: claims.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, pods.Informer(), func(old, now *v1.Pod) {
			if old == nil && now != nil && hasEphemeral(now) {
				c.loop.Add(workqueue.KeyOf(now))
			}
		}),
		workqueue.Watch(c.loop, claims.Informer(), func(old, now *v1.PersistentVolumeClaim) {
			if now != nil || old == nil {
				return
			}
			if pod, ok := workqueue.ControllerKey(old, "v1", "Pod"); ok { // a deleted claim is created again
				c.loop.Add(pod)
			}
		}),
	)
}

func hasEphemeral(p *v1.Pod) bool {
	for i := range p.Spec.Volumes {
		if p.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

func (c *ephemeralClaims) reconcile(ctx context.Context, key workqueue.Key) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return nil
	}
	if err != nil {
		return err
	}
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if vol.Ephemeral == nil {
			continue
		}
		if err := c.ensure(ctx, pod, vol); err != nil {
			err = fmt.Errorf("ephemeral volume %s: %w", vol.Name, err)
			c.env.Events.Event(pod, v1.EventTypeWarning, "FailedBinding", err.Error())
			return err
		}
	}
	return nil
}

// ensure makes a volume's claim. A claim of that name that the pod does not own is an error, because its data is not the pod's.
func (c *ephemeralClaims) ensure(ctx context.Context, pod *v1.Pod, vol *v1.Volume) error {
	have, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(ephemeral.VolumeClaimName(pod, vol))
	if err == nil {
		return ephemeral.VolumeIsForPod(pod, have)
	}
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, err = c.env.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, claimFor(pod, vol), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%w: %w", workqueue.ErrStale, err) // the retry sees whose it is
	}
	return err
}

// claimFor is the claim of a pod's volume.
func claimFor(pod *v1.Pod, vol *v1.Volume) *v1.PersistentVolumeClaim {
	template := vol.Ephemeral.VolumeClaimTemplate
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: ephemeral.VolumeClaimName(pod, vol), Namespace: pod.Namespace, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, v1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}
}
