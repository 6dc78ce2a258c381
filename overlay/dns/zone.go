package dns

import (
	"net/netip"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
)

// record is the zone's data of one Service.
type record struct {
	namespace, name string
	clusterIPs      []netip.Addr // empty for a headless Service
	external        string       // the name an ExternalName service stands for
	ports           []port
	endpoints       []endpoint
}

type port struct {
	name, protocol string // lower case
	number         uint16
}

type endpoint struct {
	address netip.Addr
	host    string // the endpoint's label below the service's name
	ports   []port
}

// Zone holds the names of one cluster domain.
type Zone struct {
	domain  string       // lower case, with a final dot
	servers []netip.Addr // the addresses of the zone's servers

	mu         sync.RWMutex
	networks   []netip.Prefix     // networks whose addresses all belong to the cluster
	records    map[string]*record // "namespace/name"
	namespaces map[string]int     // number of records
	addresses  map[netip.Addr][]pointer
}

// pointer is a PTR target: a name of an address, and the key of the Service that has it.
type pointer struct{ key, name string }

// NewZone returns an empty zone for a domain such as "cluster.local". No other resolver is asked for the names of addresses in
// networks.
func NewZone(domain string, networks ...netip.Prefix) *Zone {
	return &Zone{
		networks: networks,
		domain:   strings.ToLower(strings.Trim(domain, ".")) + ".",
		records:  make(map[string]*record), namespaces: make(map[string]int), addresses: make(map[netip.Addr][]pointer),
	}
}

// SetNetworks replaces the networks whose addresses all belong to the cluster.
func (z *Zone) SetNetworks(networks ...netip.Prefix) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.networks = networks
}

// Set replaces the records of a service; nil removes them.
func (z *Zone) Set(namespace, name string, svc *v1.Service, slices []*discovery.EndpointSlice) {
	var fresh *record
	if svc != nil {
		fresh = newRecord(svc, slices)
	}
	key := namespace + "/" + name
	z.mu.Lock()
	defer z.mu.Unlock()
	if old := z.records[key]; old != nil {
		z.updatePointers(key, old, false)
		delete(z.records, key)
		if z.namespaces[namespace]--; z.namespaces[namespace] == 0 {
			delete(z.namespaces, namespace)
		}
	}
	if fresh != nil {
		z.records[key] = fresh
		z.namespaces[namespace]++
		z.updatePointers(key, fresh, true)
	}
}

// updatePointers adds or removes the pointers of the record's addresses.
func (z *Zone) updatePointers(key string, r *record, add bool) {
	names := make(map[netip.Addr]string)
	for _, e := range r.endpoints {
		if r.headless() {
			names[e.address] = e.host + "." + z.serviceName(r)
		}
	}
	for _, ip := range r.clusterIPs {
		names[ip] = z.serviceName(r)
	}
	for ip, name := range names {
		if add {
			z.addresses[ip] = append(z.addresses[ip], pointer{key, name})
			continue
		}
		rest := slices.DeleteFunc(z.addresses[ip], func(p pointer) bool { return p.key == key })
		if len(rest) == 0 {
			delete(z.addresses, ip)
		} else {
			z.addresses[ip] = rest
		}
	}
}

func (r *record) headless() bool { return len(r.clusterIPs) == 0 && r.external == "" }

func (z *Zone) serviceName(r *record) string { return r.name + "." + r.namespace + ".svc." + z.domain }

func newRecord(svc *v1.Service, list []*discovery.EndpointSlice) *record {
	r := &record{namespace: svc.Namespace, name: svc.Name}
	if svc.Spec.Type == v1.ServiceTypeExternalName {
		r.external = strings.TrimSuffix(svc.Spec.ExternalName, ".") + "."
		return r
	}
	ips := svc.Spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{svc.Spec.ClusterIP}
	}
	for _, ip := range ips {
		if a, err := netip.ParseAddr(ip); err == nil {
			r.clusterIPs = append(r.clusterIPs, a.Unmap())
		}
	}
	for i := range svc.Spec.Ports {
		p := &svc.Spec.Ports[i]
		r.ports = append(r.ports, port{strings.ToLower(p.Name), protocolName(p.Protocol), uint16(p.Port)})
	}
	if r.headless() {
		r.addEndpoints(list, svc.Spec.PublishNotReadyAddresses)
	}
	return r
}

func protocolName(p v1.Protocol) string {
	if p == "" {
		return "tcp"
	}
	return strings.ToLower(string(p))
}

// addEndpoints adds endpoints that are ready; with unready, all endpoints.
func (r *record) addEndpoints(list []*discovery.EndpointSlice, unready bool) {
	for _, slice := range list {
		var ports []port
		for _, p := range slice.Ports {
			if p.Port == nil {
				continue
			}
			q := port{protocol: "tcp", number: uint16(*p.Port)}
			if p.Name != nil {
				q.name = strings.ToLower(*p.Name)
			}
			if p.Protocol != nil {
				q.protocol = protocolName(*p.Protocol)
			}
			ports = append(ports, q)
		}
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			if ready := e.Conditions.Ready; ready != nil && !*ready && !unready {
				continue
			}
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					r.endpoints = append(r.endpoints, endpoint{a.Unmap(), hostLabel(e, a.Unmap()), ports})
				}
			}
		}
	}
}

// hostLabel returns an endpoint's host name, or else its address with dashes.
func hostLabel(e *discovery.Endpoint, a netip.Addr) string {
	if e.Hostname != nil && *e.Hostname != "" {
		return strings.ToLower(*e.Hostname)
	}
	return strings.NewReplacer(".", "-", ":", "-").Replace(a.String())
}
