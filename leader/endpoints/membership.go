package endpoints

import (
	"reflect"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

// served reports whether a controller makes addresses for the Service: it selects pods, and it is not a mere alias.
func served(s *v1.Service) bool {
	return s.Spec.Selector != nil && s.Spec.Type != v1.ServiceTypeExternalName
}

// touched are the Services whose addresses a change of a pod may alter.
func touched(services corelisters.ServiceLister, old, now *v1.Pod) []workqueue.Key {
	if old != nil && now != nil && !matters(old, now) {
		return nil
	}
	all, err := services.Services(workqueue.Newest(old, now).Namespace).List(labels.Everything())
	if err != nil {
		return nil // a lister over a cache does not fail
	}
	var out []workqueue.Key
	for _, s := range all {
		if !served(s) {
			continue
		}
		selector := labels.SelectorFromSet(s.Spec.Selector)
		for _, p := range workqueue.Either(old, now) {
			if selector.Matches(labels.Set(p.Labels)) {
				out = append(out, workqueue.KeyOf(s))
				break
			}
		}
	}
	return out
}

// matters reports whether anything an address is made of differs.
func matters(old, now *v1.Pod) bool {
	return old.UID != now.UID ||
		pods.Ready(old) != pods.Ready(now) ||
		pods.Terminal(old) != pods.Terminal(now) ||
		(old.DeletionTimestamp == nil) != (now.DeletionTimestamp == nil) ||
		old.Spec.NodeName != now.Spec.NodeName ||
		old.Spec.Hostname != now.Spec.Hostname || old.Spec.Subdomain != now.Spec.Subdomain ||
		!reflect.DeepEqual(old.Status.PodIPs, now.Status.PodIPs) ||
		!reflect.DeepEqual(old.Labels, now.Labels)
}
