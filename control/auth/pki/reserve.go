package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// EtcdClientsOrganization is the organization of programs that may use the etcd API, like administrators.
const EtcdClientsOrganization = "balsa:etcd-clients"

// Reserve returns the names and addresses that have an owner. Every function may be nil.
type Reserve struct {
	// Hosts returns the names and addresses by which clients know the API on any server, beside this server's own.
	Hosts func() []string
	// Networks are those of Services and pods.
	Networks []netip.Prefix
	// Virtual returns a function that reports whether an address belongs to a Service or a load balancer.
	Virtual func() (func(netip.Addr) bool, error)
	// Nodes maps the names and addresses of the recorded nodes to the node's name.
	Nodes func() map[string]string
}

// Reserve sets the reserved names and addresses. It must be called before the first certificate is signed for a client.
func (a *Authority) Reserve(r Reserve) { a.reserve.Store(&r) }

// reserved returns an error if no client may get a certificate like t, even if it was approved; else nil. Both sources of
// certificates, the cluster's own service and CertificateSigningRequests, use this check: the CA also authenticates
// servers, administrators and nodes, so no certificate may let its holder impersonate one of them.
func (a *Authority) reserved(t *x509.Certificate) error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("pki: "+format+": %w", append(args, ErrBadRequest)...)
	}
	if t.IsCA || t.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return no("CA certificates are never issued")
	}
	for _, group := range t.Subject.Organization {
		if group == MastersOrganization || group == ServersOrganization || group == EtcdClientsOrganization {
			return no("the organization %s is reserved", group)
		}
	}
	if name := t.Subject.CommonName; name == servingName || strings.HasPrefix(name, ServerPrefix) {
		return no("the common name %q is reserved for servers", name)
	}
	for _, name := range t.DNSNames {
		if strings.HasSuffix(strings.ToLower(strings.TrimSuffix(name, ".")), serverDomain) {
			return no("the name %q is reserved for servers", name)
		}
	}
	if !serves(t) {
		return nil
	}
	return a.reservedHost(t, no)
}

// reservedHost returns an error if t may not have one of its names or addresses.
func (a *Authority) reservedHost(t *x509.Certificate, no func(string, ...any) error) error {
	r := a.reserve.Load()
	if r == nil {
		r = &Reserve{}
	}
	for _, host := range a.hosts(r) {
		if t.VerifyHostname(host) == nil {
			return no("%q is a name or address of the API", host)
		}
	}
	virtual := func(netip.Addr) bool { return false }
	if r.Virtual != nil {
		var err error
		if virtual, err = r.Virtual(); err != nil {
			return fmt.Errorf("pki: addresses of Services and load balancers: %w", err)
		}
	}
	for _, ip := range t.IPAddresses {
		addr, _ := netip.AddrFromSlice(ip)
		addr = addr.Unmap()
		if virtual(addr) || slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			return no("%s is an address of a Service, a load balancer or a pod", addr)
		}
	}
	if r.Nodes == nil {
		return nil
	}
	own := nodeOf(t)
	for host, node := range r.Nodes() {
		if node != own && t.VerifyHostname(host) == nil {
			return no("%q is a name or address of node %s: remove that node (`balsa members remove`) if it is gone for good", host, node)
		}
	}
	return nil
}

// nodeOf returns the name of the node in a certificate's subject; "" if it is no node's certificate.
func nodeOf(t *x509.Certificate) string {
	name, ok := strings.CutPrefix(t.Subject.CommonName, NodePrefix)
	if !ok || !slices.Contains(t.Subject.Organization, NodesOrganization) {
		return ""
	}
	return name
}

// hosts returns the names and addresses by which clients know the API, except for those such as localhost that mean a
// different machine everywhere.
func (a *Authority) hosts(r *Reserve) (list []string) {
	own := a.servingRequest()
	list = slices.Clone(own.Names)
	for _, ip := range own.IPs {
		list = append(list, ip.String())
	}
	if r.Hosts != nil {
		list = append(list, r.Hosts()...)
	}
	return slices.DeleteFunc(list, func(host string) bool {
		ip := net.ParseIP(host)
		return host == "" || host == "localhost" || ip != nil && (ip.IsLoopback() || ip.IsUnspecified())
	})
}

// onRecord returns an error if a recorded node asks for a serving certificate with a name or address that is not in its
// record. For a node without a record, such as a foreign kubelet's, the approver decides.
func (a *Authority) onRecord(t *x509.Certificate) error {
	r, own := a.reserve.Load(), nodeOf(t)
	if own == "" || r == nil || r.Nodes == nil || !serves(t) {
		return nil
	}
	nodes := r.Nodes()
	if nodes[own] != own {
		return nil
	}
	hosts := slices.Clone(t.DNSNames)
	for _, ip := range t.IPAddresses {
		if !ip.IsLoopback() {
			hosts = append(hosts, ip.String())
		}
	}
	for _, host := range hosts {
		if host != "localhost" && nodes[strings.ToLower(host)] != own {
			return fmt.Errorf("pki: %q is no name or address of node %s on record: %w", host, own, ErrBadRequest)
		}
	}
	return nil
}
