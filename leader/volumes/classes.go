package volumes

import (
	"context"
	"errors"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

const classFinalizer = "kubernetes.io/vac-protection"

type classProtection struct {
	env     workqueue.Env
	classes storagelisters.VolumeAttributesClassLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	loop    *workqueue.Loop[string]
}

// NewClassProtection returns the controller that lets VolumeAttributesClasses go once no claim and no volume names them
// (KEP-3751).
func NewClassProtection(env workqueue.Env, workers int) (workqueue.Runner, error) {
	core, classes := env.Informers.Core().V1(), env.Informers.Storage().V1().VolumeAttributesClasses()
	claims, volumes := core.PersistentVolumeClaims(), core.PersistentVolumes()
	c := &classProtection{env: env, classes: classes.Lister(), claims: claims.Lister(), volumes: volumes.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, classes.Informer(), func(_, now *storagev1.VolumeAttributesClass) {
			if now != nil && (now.DeletionTimestamp != nil) == slices.Contains(now.Finalizers, classFinalizer) {
				c.loop.Add(now.Name)
			}
		}),
		workqueue.Watch(c.loop, claims.Informer(), func(old, now *v1.PersistentVolumeClaim) { c.letGo(classesOf(old), classesOf(now)) }),
		workqueue.Watch(c.loop, volumes.Informer(), func(old, now *v1.PersistentVolume) { c.letGo(classOf(old), classOf(now)) }),
	)
}

// letGo queues the classes that were named and are no longer.
func (c *classProtection) letGo(was, is []string) {
	for _, name := range was {
		if !slices.Contains(is, name) {
			c.loop.Add(name)
		}
	}
}

func (c *classProtection) reconcile(ctx context.Context, name string) error {
	class, err := c.classes.Get(name)
	if err != nil {
		return ignoreGone(err)
	}
	has := slices.Contains(class.Finalizers, classFinalizer)
	switch {
	case class.DeletionTimestamp == nil && !has:
		class = class.DeepCopy()
		class.Finalizers = append(class.Finalizers, classFinalizer)
	case class.DeletionTimestamp != nil && has:
		named, err := c.named(name)
		if err != nil || named {
			return err
		}
		class = class.DeepCopy()
		class.Finalizers = slices.DeleteFunc(class.Finalizers, func(f string) bool { return f == classFinalizer })
	default:
		return nil
	}
	_, err = c.env.Client.StorageV1().VolumeAttributesClasses().Update(ctx, class, metav1.UpdateOptions{})
	return ignoreGone(err)
}

// named reports whether a claim or a volume names the class.
func (c *classProtection) named(class string) (bool, error) {
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return true, err
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return true, err
	}
	return slices.ContainsFunc(claims, func(p *v1.PersistentVolumeClaim) bool { return slices.Contains(classesOf(p), class) }) ||
		slices.ContainsFunc(volumes, func(v *v1.PersistentVolume) bool { return slices.Contains(classOf(v), class) }), nil
}

// classesOf are the classes that a claim asks for, has, and is being changed to.
func classesOf(p *v1.PersistentVolumeClaim) (out []string) {
	if p == nil {
		return nil
	}
	add := func(name *string) {
		if name != nil && *name != "" {
			out = append(out, *name)
		}
	}
	add(p.Spec.VolumeAttributesClassName)
	add(p.Status.CurrentVolumeAttributesClassName)
	if m := p.Status.ModifyVolumeStatus; m != nil {
		add(&m.TargetVolumeAttributesClassName)
	}
	return out
}

// classOf is the class of a volume, if it has one.
func classOf(v *v1.PersistentVolume) []string {
	if v == nil || v.Spec.VolumeAttributesClassName == nil || *v.Spec.VolumeAttributesClassName == "" {
		return nil
	}
	return []string{*v.Spec.VolumeAttributesClassName}
}
