package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// EtcdClientsOrganization is that of programs which may use the etcd API, beside administrators.
const EtcdClientsOrganization = "balsa:etcd-clients"

// Reserve tells which names and addresses have an owner. Every function may be nil.
type Reserve struct {
	// Hosts returns the names and addresses by which clients know the API on any server, beside this server's own.
	Hosts func() []string
	// Networks are those of Services and pods.
	Networks []netip.Prefix
	// Virtual returns a function that reports whether an address belongs to a Service or a load balancer.
	Virtual func() (func(netip.Addr) bool, error)
	// Nodes returns the names and addresses of the nodes on record, each with its node's name.
	Nodes func() map[string]string
}

// Reserve replaces what reserved goes by. Call it before anything is signed for others.
func (a *Authority) Reserve(r Reserve) { a.reserve.Store(&r) }

// reserved returns why nobody gets a certificate like t, whoever approved it; nil when somebody may have it. It is the one
// check for both ways to a certificate, the cluster's own service and CertificateSigningRequests: the CA vouches for
// servers, administrators and nodes, too, so no certificate may let its holder pass for another one.
func (a *Authority) reserved(t *x509.Certificate) error {
	no := func(format string, args ...any) error {
		return fmt.Errorf("pki: "+format+": %w", append(args, ErrBadRequest)...)
	}
	if t.IsCA || t.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
		return no("certificates that sign others are not given away")
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

// reservedHost returns why t may not serve under one of its names and addresses.
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

// nodeOf is the name of the node that a certificate is for; "" when it is no node's.
func nodeOf(t *x509.Certificate) string {
	name, ok := strings.CutPrefix(t.Subject.CommonName, NodePrefix)
	if !ok || !slices.Contains(t.Subject.Organization, NodesOrganization) {
		return ""
	}
	return name
}

// hosts are what clients know the API by, without those that mean another machine everywhere.
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

// onRecord returns why a node that is on record does not get a certificate to serve with: a name or address in it is not
// in its record. A node without a record, such as a foreign kubelet's, is left to who approves.
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
