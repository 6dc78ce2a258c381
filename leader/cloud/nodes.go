package cloud

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

// lookAgain is the interval at which the provider is asked about the machine of a node that is not ready, because providers
// send no events.
const lookAgain = time.Minute

type nodes struct {
	env       workqueue.Env
	instances Instances
	nodes     corelisters.NodeLister
	loop      *workqueue.Loop[string]
}

// NewNodes returns the controller that initializes nodes, and deletes nodes whose machine is gone.
//
// It watches Nodes. Of a node with the taint node.cloudprovider.kubernetes.io/uninitialized it writes spec.providerID,
// labels, addresses, and removes the taint. Of nodes that are not ready it writes the taint
// node.cloudprovider.kubernetes.io/shutdown, and it deletes nodes without a machine. It never touches nodes that are ready
// and initialized.
func NewNodes(env workqueue.Env, workers int, instances Instances) (workqueue.Runner, error) {
	informer := env.Informers.Core().V1().Nodes()
	c := &nodes{env: env, instances: instances, nodes: informer.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, workqueue.Watch(c.loop, informer.Informer(), func(_, now *v1.Node) {
		if now != nil && now.DeletionTimestamp == nil && (uninitialized(now) || inDoubt(now) || hasTaint(now, TaintOff)) {
			c.loop.Add(now.Name)
		}
	})
}

func (c *nodes) reconcile(ctx context.Context, name string) error {
	node, err := c.nodes.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if !uninitialized(node) && !inDoubt(node) && !hasTaint(node, TaintOff) {
		return nil
	}
	machine, err := c.instances.Instance(ctx, node)
	if errors.Is(err, ErrNoInstance) && !uninitialized(node) {
		c.env.Events.Event(reference(node), v1.EventTypeNormal, "DeletingNode", "Its machine does not exist any more.")
		err := c.env.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &node.UID}})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	if err != nil {
		return fmt.Errorf("machine of node %s: %w", name, err)
	}
	if inDoubt(node) {
		c.loop.AddAfter(name, lookAgain)
	}
	return c.write(ctx, node, machine)
}

// write writes the changes of a node, addresses first, because pods may run on a node as soon as its taint is gone.
func (c *nodes) write(ctx context.Context, node *v1.Node, machine Instance) (err error) {
	client := c.env.Client.CoreV1().Nodes()
	if uninitialized(node) {
		if want := addressed(node, machine); want != nil {
			if node, err = client.UpdateStatus(ctx, want, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
	}
	want := switched(node, machine.Off)
	if uninitialized(node) {
		if want == nil {
			want = node.DeepCopy()
		}
		initialize(want, machine)
	}
	if want == nil {
		return nil
	}
	if _, err = client.Update(ctx, want, metav1.UpdateOptions{}); err != nil {
		return err
	}
	if uninitialized(node) {
		c.env.Events.Event(reference(node), v1.EventTypeNormal, "Initialized", "The provider knows the node's machine; pods may run on it.")
	}
	return nil
}

func reference(n *v1.Node) *v1.ObjectReference {
	return &v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: types.UID(n.Name)}
}
