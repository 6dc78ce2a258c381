package leader

import (
	"context"
	"encoding/json"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcoordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The Leases in kube-system, and the Endpoints of the same names, that show users which server leads. They are only for
// display: the store's fence decides. They are renewed every half duration, which is long, so that an idle cluster stays
// idle.
const (
	shownDuration = 2 * time.Hour
	shownRetry    = 10 * time.Second
)

var shown = []struct{ name, user string }{
	{"kube-controller-manager", userManager},
	{"kube-scheduler", userScheduler},
}

// showHolder writes the Leases at the start of the term and keeps them fresh until ctx ends.
func (s *scope) showHolder(ctx context.Context) {
	first := true
	for ctx.Err() == nil {
		wait := shownDuration / 2
		for _, l := range shown {
			if err := s.showLease(ctx, l.name, l.user, first); err != nil && ctx.Err() == nil {
				s.log.Debug("showing the leader in a Lease failed", "lease", l.name, "err", err)
				wait = shownRetry
			}
		}
		first = first && wait == shownRetry
		pause(ctx, wait)
	}
}

func (s *scope) showLease(ctx context.Context, name, user string, first bool) error {
	client, err := typedcoordination.NewForConfig(configFor(ctx, s.term, user))
	if err != nil {
		return err
	}
	leases := client.Leases(metav1.NamespaceSystem)
	have, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if apierrors.IsNotFound(err) {
		have = nil
	}
	want := leaseOf(name, s.cfg.Identity, have, first, time.Now())
	if have == nil {
		_, err = leases.Create(ctx, want, metav1.CreateOptions{})
	} else {
		_, err = leases.Update(ctx, want, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return s.showRecord(ctx, want)
}

// userEndpoints is the account that may write Endpoints.
const userEndpoints = "system:serviceaccount:kube-system:endpoint-controller"

// showRecord writes what the Lease says into the annotation of the Endpoints of the same name, where Kubernetes kept it until
// v1.19 and where some programs still read it.
func (s *scope) showRecord(ctx context.Context, l *coordinationv1.Lease) error {
	record, err := recordOf(l)
	if err != nil {
		return err
	}
	client, err := typedcore.NewForConfig(configFor(ctx, s.term, userEndpoints))
	if err != nil {
		return err
	}
	endpoints := client.Endpoints(l.Namespace)
	have, err := endpoints.Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		have = &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, resourcelock.LeaderElectionRecordAnnotationKey, record)
		_, err = endpoints.Create(ctx, have, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	metav1.SetMetaDataAnnotation(&have.ObjectMeta, resourcelock.LeaderElectionRecordAnnotationKey, record)
	_, err = endpoints.Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// recordOf returns the value of the annotation.
func recordOf(l *coordinationv1.Lease) (string, error) {
	record, err := json.Marshal(resourcelock.LeaseSpecToLeaderElectionRecord(&l.Spec))
	return string(record), err
}

// leaseOf returns the Lease of the holder, based on the existing one (nil: none). With first, a change of the holder counts
// as one more transition.
func leaseOf(name, holder string, have *coordinationv1.Lease, first bool, now time.Time) *coordinationv1.Lease {
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}}
	if have != nil {
		l = have.DeepCopy()
	}
	at := metav1.NewMicroTime(now)
	changed := l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != holder
	transitions := int32(0)
	if l.Spec.LeaseTransitions != nil {
		transitions = *l.Spec.LeaseTransitions
	}
	if changed && have != nil {
		transitions++
	}
	if changed || first || l.Spec.AcquireTime == nil {
		l.Spec.AcquireTime = &at
	}
	seconds := int32(shownDuration / time.Second)
	l.Spec.HolderIdentity, l.Spec.LeaseTransitions = &holder, &transitions
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds = &at, &seconds
	return l
}
