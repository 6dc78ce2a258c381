package replicaset

import (
	"context"

	apps "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/leader/workqueue"
)

// kind hides from the core which of the two kinds it works for. Both are handled as a ReplicaSet; what get and list
// return is shared with the cache.
type kind struct {
	gvk          schema.GroupVersionKind
	informer     cache.SharedIndexInformer
	get          func(k workqueue.Key) (*apps.ReplicaSet, error)
	list         func(namespace string) ([]*apps.ReplicaSet, error)
	fresh        func(ctx context.Context, k workqueue.Key) (metav1.Object, error)
	updateStatus func(ctx context.Context, set *apps.ReplicaSet) error
}

func replicaSets(env workqueue.Env) kind {
	informer := env.Informers.Apps().V1().ReplicaSets()
	lister := informer.Lister()
	client := env.Client.AppsV1()
	return kind{
		gvk:      apps.SchemeGroupVersion.WithKind("ReplicaSet"),
		informer: informer.Informer(),
		get: func(k workqueue.Key) (*apps.ReplicaSet, error) {
			return lister.ReplicaSets(k.Namespace).Get(k.Name)
		},
		list: func(namespace string) ([]*apps.ReplicaSet, error) {
			return lister.ReplicaSets(namespace).List(labels.Everything())
		},
		fresh: func(ctx context.Context, k workqueue.Key) (metav1.Object, error) {
			return client.ReplicaSets(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
		},
		updateStatus: func(ctx context.Context, set *apps.ReplicaSet) error {
			_, err := client.ReplicaSets(set.Namespace).UpdateStatus(ctx, set, metav1.UpdateOptions{})
			return err
		},
	}
}

func replicationControllers(env workqueue.Env) kind {
	informer := env.Informers.Core().V1().ReplicationControllers()
	lister := informer.Lister()
	client := env.Client.CoreV1()
	return kind{
		gvk:      v1.SchemeGroupVersion.WithKind("ReplicationController"),
		informer: informer.Informer(),
		get: func(k workqueue.Key) (*apps.ReplicaSet, error) {
			rc, err := lister.ReplicationControllers(k.Namespace).Get(k.Name)
			if err != nil {
				return nil, err
			}
			return fromRC(rc), nil
		},
		list: func(namespace string) ([]*apps.ReplicaSet, error) {
			rcs, err := lister.ReplicationControllers(namespace).List(labels.Everything())
			sets := make([]*apps.ReplicaSet, len(rcs))
			for i := range rcs {
				sets[i] = fromRC(rcs[i])
			}
			return sets, err
		},
		fresh: func(ctx context.Context, k workqueue.Key) (metav1.Object, error) {
			return client.ReplicationControllers(k.Namespace).Get(ctx, k.Name, metav1.GetOptions{})
		},
		updateStatus: func(ctx context.Context, set *apps.ReplicaSet) error {
			rc, err := lister.ReplicationControllers(set.Namespace).Get(set.Name)
			if err != nil {
				return err
			}
			rc = rc.DeepCopy()
			rc.ResourceVersion = set.ResourceVersion
			rc.Status = toRCStatus(set.Status)
			_, err = client.ReplicationControllers(set.Namespace).UpdateStatus(ctx, rc, metav1.UpdateOptions{})
			return err
		},
	}
}

// fromRC shows a ReplicationController as the ReplicaSet that would do the same. Its parts are shared, not copied.
func fromRC(rc *v1.ReplicationController) *apps.ReplicaSet {
	set := &apps.ReplicaSet{
		ObjectMeta: rc.ObjectMeta,
		Spec: apps.ReplicaSetSpec{
			Replicas:        rc.Spec.Replicas,
			MinReadySeconds: rc.Spec.MinReadySeconds,
			Selector:        &metav1.LabelSelector{MatchLabels: rc.Spec.Selector},
		},
		Status: apps.ReplicaSetStatus{
			Replicas:             rc.Status.Replicas,
			FullyLabeledReplicas: rc.Status.FullyLabeledReplicas,
			ReadyReplicas:        rc.Status.ReadyReplicas,
			AvailableReplicas:    rc.Status.AvailableReplicas,
			ObservedGeneration:   rc.Status.ObservedGeneration,
		},
	}
	if rc.Spec.Template != nil {
		set.Spec.Template = *rc.Spec.Template
	}
	for _, c := range rc.Status.Conditions {
		set.Status.Conditions = append(set.Status.Conditions, apps.ReplicaSetCondition{
			Type: apps.ReplicaSetConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return set
}

func toRCStatus(s apps.ReplicaSetStatus) v1.ReplicationControllerStatus {
	out := v1.ReplicationControllerStatus{
		Replicas:             s.Replicas,
		FullyLabeledReplicas: s.FullyLabeledReplicas,
		ReadyReplicas:        s.ReadyReplicas,
		AvailableReplicas:    s.AvailableReplicas,
		ObservedGeneration:   s.ObservedGeneration,
	}
	for _, c := range s.Conditions {
		out.Conditions = append(out.Conditions, v1.ReplicationControllerCondition{
			Type: v1.ReplicationControllerConditionType(c.Type), Status: c.Status,
			LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message,
		})
	}
	return out
}
