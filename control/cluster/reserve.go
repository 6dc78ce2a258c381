package cluster

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/raftstore"
)

// reserve returns the reserved names and addresses from the records, for all certificates that are signed here.
func (c *Config) reserve() pki.Reserve {
	store := c.Store
	return pki.Reserve{
		Hosts:    func() []string { return apiHosts(Records(store.View())) },
		Nodes:    func() map[string]string { return nodeHosts(store.View()) },
		Networks: c.Settings.networks(), Virtual: c.Virtual,
	}
}

// apiHosts returns the names and addresses by which clients know the servers.
func apiHosts(records map[string]MemberRecord) (hosts []string) {
	for _, rec := range records {
		hosts = append(append(hosts, rec.Name), rec.Names...)
		for _, addr := range rec.Addresses {
			if host, _, err := net.SplitHostPort(addr); err == nil {
				hosts = append(hosts, host)
			}
		}
	}
	return hosts
}

// nodeHosts returns the names and addresses of the agents, each with its node's name.
func nodeHosts(v *raftstore.View) map[string]string {
	hosts := map[string]string{}
	for name, rec := range readAll[nodeRecord](v, nodesPrefix) {
		hosts[strings.ToLower(name)] = name
		for _, a := range rec.Addresses {
			hosts[a] = name
		}
	}
	return hosts
}

// CheckNodeClaim returns an error if a node may not claim these addresses. The addresses of a server that takes pods are
// those of its API; no agent gets a server's name.
func (s *Service) CheckNodeClaim(node string, ips []net.IP) error {
	if checkServerNames(node, Records(s.cfg.Store.View())) != nil || node == s.cfg.Name {
		return nil
	}
	return s.cfg.PKI.CheckNodeHosts(node, ips)
}

// ownAddresses are those of asked that a node may have certificates for: the ones on record, and the one that it calls
// from. A router that translates addresses may stand between, so a call from elsewhere proves nothing against the record.
func ownAddresses(record []string, from netip.Addr, asked []string) (own, others []string) {
	for _, text := range asked {
		if a, err := netip.ParseAddr(text); slices.Contains(record, text) || err == nil && a.Unmap() == from {
			own = append(own, text)
		} else {
			others = append(others, text)
		}
	}
	return own, others
}
