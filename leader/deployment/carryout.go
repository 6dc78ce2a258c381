package deployment

import (
	"context"
	"fmt"
	"reflect"
	"time"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/leader/controllerref"
	"github.com/balsahq/balsa/leader/workqueue"
)

// carryOut makes the writes of a plan: ReplicaSets first, the status last, so that the status never promises what has
// not been asked for.
func (c *controller) carryOut(ctx context.Context, d *apps.Deployment, p plan) error {
	if p.create != nil {
		if err := c.create(ctx, d, p); err != nil {
			return err
		}
	}
	for _, u := range p.update {
		if err := c.update(ctx, d, u); err != nil {
			return err
		}
	}
	for _, s := range p.remove {
		err := c.env.Client.AppsV1().ReplicaSets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	if p.again > 0 {
		c.loop.AddAfter(workqueue.KeyOf(d), p.again)
	}
	return c.writeStatus(ctx, d, p.status, p.revision)
}

func (c *controller) writeStatus(ctx context.Context, d *apps.Deployment, status apps.DeploymentStatus, revision string) error {
	sameRevision := revision == "" || d.Annotations[annRevision] == revision
	if sameRevision && reflect.DeepEqual(d.Status, status) {
		return nil
	}
	d = d.DeepCopy()
	d.Status = status
	if !sameRevision {
		if d.Annotations == nil {
			d.Annotations = map[string]string{}
		}
		d.Annotations[annRevision] = revision
	}
	_, err := c.env.Client.AppsV1().Deployments(d.Namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (c *controller) update(ctx context.Context, d *apps.Deployment, u change) error {
	now, err := c.env.Client.AppsV1().ReplicaSets(d.Namespace).Update(ctx, u.set, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	c.pending.Wrote(d.UID, now)
	if to := size(u.set); to != u.from {
		way := "up"
		if to < u.from {
			way = "down"
		}
		c.env.Events.Eventf(reference(d), v1.EventTypeNormal, "ScalingReplicaSet", "Scaled %s replica set %s from %d to %d", way, u.set.Name, u.from, to)
	}
	return nil
}

func (c *controller) create(ctx context.Context, d *apps.Deployment, p plan) error {
	client := c.env.Client.AppsV1().ReplicaSets(d.Namespace)
	made, err := client.Create(ctx, p.create, metav1.CreateOptions{})
	switch {
	case err == nil:
		c.pending.Wrote(d.UID, made)
		if n := size(made); n > 0 {
			c.env.Events.Eventf(reference(d), v1.EventTypeNormal, "ScalingReplicaSet", "Scaled up replica set %s from 0 to %d", made.Name, n)
		}
		return nil
	case apierrors.IsAlreadyExists(err):
		return c.collided(ctx, d, p.create.Name, err)
	case controllerref.NamespaceEnding(err):
		return nil
	}
	message := fmt.Sprintf("Failed to create new replica set %q: %v", p.create.Name, err)
	c.env.Events.Event(reference(d), v1.EventTypeWarning, reasonFailed, message)
	if hasDeadline(d) {
		status := *d.Status.DeepCopy()
		setCondition(&status, progressing(v1.ConditionFalse, reasonFailed, message, time.Now()))
		if e := c.writeStatus(ctx, d, status, ""); e != nil {
			return fmt.Errorf("%w (and its status: %w)", err, e)
		}
	}
	return err
}

// collided handles a name that is taken: by our own set, which the cache has not shown yet, or by another template with
// the same hash, which the collision count tells apart from the next try on.
func (c *controller) collided(ctx context.Context, d *apps.Deployment, name string, taken error) error {
	s, err := c.env.Client.AppsV1().ReplicaSets(d.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if metav1.IsControlledBy(s, d) && sameTemplate(&s.Spec.Template, &d.Spec.Template) {
		c.pending.Wrote(d.UID, s)
		return nil
	}
	status := *d.Status.DeepCopy()
	next := int32(1)
	if status.CollisionCount != nil {
		next = *status.CollisionCount + 1
	}
	status.CollisionCount = &next
	if err := c.writeStatus(ctx, d, status, ""); err != nil {
		return err
	}
	return taken
}
