package node

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/balsahq/balsa/fault"
)

// keepLease renews the node's Lease every leaseInterval.
func (a *Agent) keepLease(ctx context.Context) {
	var lease *coordinationv1.Lease
	delay := notReadyPoll
	for {
		fault.Point("node/lease")
		var err error
		if lease, err = a.renew(ctx, lease); err != nil && ctx.Err() == nil {
			a.log.Debug("the node's Lease cannot be renewed; it is tried again", "err", err)
		}
		wait := leaseInterval
		if err != nil {
			wait, delay = delay, min(2*delay, 5*time.Second)
		} else {
			delay = notReadyPoll
		}
		if !pause(ctx, wait) {
			return
		}
	}
}

// renew writes the Lease once, from the given version or from the API's when that is nil. It returns the version that is in
// the API now, nil when it is not known.
func (a *Agent) renew(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := a.cfg.Client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	update := func(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
		return leases.Update(ctx, l, metav1.UpdateOptions{})
	}
	if lease == nil {
		got, err := leases.Get(ctx, a.cfg.NodeName, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			got = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: a.cfg.NodeName, Namespace: v1.NamespaceNodeLease}}
			update = func(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error) {
				return leases.Create(ctx, l, metav1.CreateOptions{})
			}
		case err != nil:
			return nil, err
		}
		lease = got
	}
	lease = lease.DeepCopy()
	holder, seconds, now := a.cfg.NodeName, int32(leaseSeconds), metav1.NowMicro()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &holder, &seconds, &now
	if n := a.Node(); len(lease.OwnerReferences) == 0 && n.UID != "" {
		lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}}
	}
	got, err := update(ctx, lease)
	if err != nil {
		return nil, err
	}
	return got, nil
}
