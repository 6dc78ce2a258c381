package localvolumes

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// capacityInterval is how often a node is asked for its room; other programs fill its disk too.
const capacityInterval = time.Minute

// kind is what a key of the queue names.
type kind uint8

const (
	aClaim    kind = iota
	aVolume        // has no namespace
	aNode          // its CSINode
	theDriver      // the CSIDriver and the first StorageClass
)

type thing struct {
	kind kind
	key  workqueue.Key
}

type controller struct {
	env        workqueue.Env
	claims     corelisters.PersistentVolumeClaimLister
	volumes    corelisters.PersistentVolumeLister
	nodes      corelisters.NodeLister
	classes    storagelisters.StorageClassLister
	csiNodes   storagelisters.CSINodeLister
	capacities storagelisters.CSIStorageCapacityLister
	loop       *workqueue.Loop[thing]
	// post sends a call to a node's API; replaced in tests.
	post func(ctx context.Context, node, method string, body []byte) ([]byte, error)
}

// New returns the controller of local volumes.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	return newController(env, workers, func(ctx context.Context, node, method string, body []byte) ([]byte, error) {
		return env.Client.CoreV1().RESTClient().Post().Resource("nodes").Name(node).SubResource("proxy").Suffix("balsa/csi", method).
			SetHeader("Content-Type", "application/octet-stream").Body(body).DoRaw(ctx)
	})
}

func newController(env workqueue.Env, workers int, post func(context.Context, string, string, []byte) ([]byte, error)) (workqueue.Runner, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	claims, volumes, nodes := core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes()
	classes, csiNodes, capacities := storage.StorageClasses(), storage.CSINodes(), storage.CSIStorageCapacities()
	c := &controller{env: env, post: post, claims: claims.Lister(), volumes: volumes.Lister(), nodes: nodes.Lister(),
		classes: classes.Lister(), csiNodes: csiNodes.Lister(), capacities: capacities.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, nodes.Informer(), capacities.Informer())
	c.loop.Add(thing{kind: theDriver})
	return c.loop, errors.Join(
		workqueue.Watch(c.loop, claims.Informer(), func(_, now *v1.PersistentVolumeClaim) {
			if now != nil && now.Annotations[annProvisioner] == Driver {
				c.loop.Add(thing{aClaim, workqueue.KeyOf(now)})
			}
		}),
		workqueue.Watch(c.loop, volumes.Informer(), func(_, now *v1.PersistentVolume) {
			if now != nil && ours(now) {
				c.loop.Add(thing{aVolume, workqueue.KeyOf(now)})
			}
		}),
		workqueue.Watch(c.loop, csiNodes.Informer(), func(old, now *storagev1.CSINode) {
			if now != nil && hasDriver(now) && !hasDriver(old) {
				c.loop.Add(thing{aNode, workqueue.KeyOf(now)})
			}
		}),
		workqueue.Watch(c.loop, classes.Informer(), func(old, now *storagev1.StorageClass) {
			if now == nil {
				now = old
			}
			if now.Provisioner == Driver {
				c.queueAllNodes()
			}
		}),
		workqueue.Watch(c.loop, storage.CSIDrivers().Informer(), func(old, now *storagev1.CSIDriver) {
			if now == nil && old.Name == Driver {
				c.loop.Add(thing{kind: theDriver})
			}
		}),
	)
}

func (c *controller) queueAllNodes() {
	all, err := c.csiNodes.List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	for _, n := range all {
		if hasDriver(n) {
			c.loop.Add(thing{aNode, workqueue.KeyOf(n)})
		}
	}
}

func (c *controller) reconcile(ctx context.Context, t thing) error {
	switch t.kind {
	case aClaim:
		claim, err := c.claims.PersistentVolumeClaims(t.key.Namespace).Get(t.key.Name)
		if err != nil {
			return ignoreGone(err)
		}
		return c.claim(ctx, claim)
	case aVolume:
		v, err := c.volumes.Get(t.key.Name)
		if err != nil {
			return ignoreGone(err)
		}
		return c.volume(ctx, v)
	case aNode:
		n, err := c.csiNodes.Get(t.key.Name)
		if err != nil {
			return ignoreGone(err)
		}
		return c.node(ctx, n)
	}
	return c.introduce(ctx)
}

// introduce makes the StorageClass and then the CSIDriver, once: where the CSIDriver is, the class has been made, and an
// administrator who removed it meant that.
func (c *controller) introduce(ctx context.Context) error {
	client := c.env.Client.StorageV1()
	if _, err := client.CSIDrivers().Get(ctx, Driver, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	others, err := client.StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if _, err := client.StorageClasses().Create(ctx, classObject(others.Items), metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = client.CSIDrivers().Create(ctx, driverObject(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// node publishes how much room a node has for each class, and does so again later. It removes the capacities of classes
// that are gone.
func (c *controller) node(ctx context.Context, n *storagev1.CSINode) error {
	if !hasDriver(n) {
		return nil
	}
	defer c.loop.AddAfter(thing{aNode, workqueue.KeyOf(n)}, capacityInterval)
	classes, err := c.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	known, err := c.capacities.CSIStorageCapacities(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, old := range outdated(n, known, classes) {
		if err := c.env.Client.StorageV1().CSIStorageCapacities(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}); ignoreGone(err) != nil {
			return err
		}
	}
	var room csipb.GetCapacityResponse
	if err := c.call(ctx, n.Name, "GetCapacity", &csipb.GetCapacityRequest{}, &room); err != nil {
		return fmt.Errorf("%w: room of node %s: %w", workqueue.ErrStale, n.Name, err) // its API comes up, or the node is known to be down
	}
	var errs []error
	for _, class := range classes {
		if class.Provisioner == Driver {
			errs = append(errs, c.publish(ctx, storageCapacity(n, class.Name, room.AvailableCapacity)))
		}
	}
	return errors.Join(errs...)
}

func (c *controller) publish(ctx context.Context, want *storagev1.CSIStorageCapacity) error {
	client := c.env.Client.StorageV1().CSIStorageCapacities(want.Namespace)
	have, err := c.capacities.CSIStorageCapacities(want.Namespace).Get(want.Name)
	if apierrors.IsNotFound(err) {
		_, err = client.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil || !worthWriting(have.Capacity, want.Capacity.Value()) {
		return err
	}
	have = have.DeepCopy()
	have.Capacity = want.Capacity
	_, err = client.Update(ctx, have, metav1.UpdateOptions{})
	return ignoreGone(err)
}

func capacityName(node, class string) string {
	sum := sha256.Sum256([]byte(node + "/" + class))
	return "csisc-" + hex.EncodeToString(sum[:8])
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
