package overlay

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/dns"
)

// DNSSettings is the ConfigMap in the namespace kube-system that says which resolvers are asked for names outside the cluster;
// its keys are those of dns.ParseSettings. Without it the host's resolvers are asked.
const DNSSettings = "balsa-dns"

// FollowDNSSettings gives the DNS server the settings in the API until ctx ends. Settings with a fault are not used; the
// former ones stay.
func (n *Network) FollowDNSSettings(ctx context.Context, client kubernetes.Interface) error {
	if n.server == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	one := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(metav1.NamespaceSystem),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, DNSSettings).String()
		})).Core().V1().ConfigMaps().Informer()
	_, err := one.AddEventHandler(eventhandler.Contain("overlay/dns", cache.ResourceEventHandlerFuncs{
		AddFunc:    n.dnsSettings,
		UpdateFunc: func(_, obj any) { n.dnsSettings(obj) },
		DeleteFunc: func(any) { n.server.Set(dns.Settings{}) },
	}))
	if err != nil {
		return fmt.Errorf("overlay: %w", err)
	}
	one.RunWithContext(ctx)
	return ctx.Err()
}

func (n *Network) dnsSettings(obj any) {
	fault.Point("overlay/dns settings")
	m, ok := obj.(*v1.ConfigMap)
	if !ok {
		return
	}
	settings, err := dns.ParseSettings(m.Data, n.cfg.Domain, n.cfg.DNS)
	if err != nil {
		n.cfg.Logger.Error("cannot use the DNS settings; the former ones stay", "configmap", metav1.NamespaceSystem+"/"+DNSSettings, "err", err)
		return
	}
	n.server.Set(settings)
}

func (n *Network) serviceChanged(obj any) {
	if svc, ok := obj.(*v1.Service); ok {
		n.engine.metrics.changed(n.engine.metrics.serviceChanges)
		n.engine.markService(svc.Namespace, svc.Name)
		n.updateNames(svc.Namespace, svc.Name)
	}
}

func (n *Network) sliceChanged(obj any) {
	if slice, ok := obj.(*discovery.EndpointSlice); ok {
		name := slice.Labels[discovery.LabelServiceName]
		n.engine.metrics.changed(n.engine.metrics.endpointChanges)
		n.engine.markService(slice.Namespace, name)
		if slice.Namespace+"/"+name == apiService {
			n.engine.markDirty(peersDirty) // the addresses of API servers are reserved
		}
		if svc, err := n.engine.services.Services(slice.Namespace).Get(name); err == nil && svc.Spec.ClusterIP == v1.ClusterIPNone {
			n.updateNames(slice.Namespace, name) // only headless Services have their endpoints in DNS
		}
	}
}

// updateNames updates the DNS names of one service. Handlers of two informers may do so at once; each reads the listers after
// its own change is in them, so the last to write has seen both changes. Without a DNS server it does nothing.
func (n *Network) updateNames(namespace, name string) {
	if n.server == nil {
		return
	}
	n.engine.zoneWrite.Lock()
	defer n.engine.zoneWrite.Unlock()
	svc, err := n.engine.services.Services(namespace).Get(name)
	if errors.IsNotFound(err) {
		n.zone.Set(namespace, name, nil, nil)
		return
	}
	if err != nil {
		return
	}
	var slices []*discovery.EndpointSlice
	if svc.Spec.ClusterIP == v1.ClusterIPNone {
		slices = slicesOf(n.engine.slices, namespace+"/"+name)
	}
	n.zone.Set(namespace, name, svc, slices)
}
