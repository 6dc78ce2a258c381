package overlay

import (
	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
)

func (n *Network) serviceChanged(obj any) {
	if svc, ok := obj.(*v1.Service); ok {
		n.rename(svc.Namespace, svc.Name)
		n.engine.note(servicesTouched)
	}
}

func (n *Network) sliceChanged(obj any) {
	if slice, ok := obj.(*discovery.EndpointSlice); ok {
		n.rename(slice.Namespace, slice.Labels[discovery.LabelServiceName])
		n.engine.note(servicesTouched)
	}
}

// rename brings the names of one service up to date. Handlers of two informers may do so at once; each reads the listers
// after its own change is in them, so whichever writes last has seen both.
func (n *Network) rename(namespace, name string) {
	n.engine.naming.Lock()
	defer n.engine.naming.Unlock()
	svc, err := n.cfg.Informers.Core().V1().Services().Lister().Services(namespace).Get(name)
	if errors.IsNotFound(err) {
		n.zone.Set(namespace, name, nil, nil)
		return
	}
	if err != nil {
		return
	}
	var slices []*discovery.EndpointSlice
	if svc.Spec.ClusterIP == v1.ClusterIPNone { // only headless services show their endpoints
		selector := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: name})
		slices, _ = n.cfg.Informers.Discovery().V1().EndpointSlices().Lister().EndpointSlices(namespace).List(selector)
	}
	n.zone.Set(namespace, name, svc, slices)
}
