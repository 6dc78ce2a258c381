package dns

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Keys of the ConfigMap that names the resolvers for names outside the cluster, in kube-dns's form.
const (
	// StubDomainsKey holds a JSON object: a domain, and the resolvers of its names as a list.
	StubDomainsKey = "stubDomains"
	// UpstreamsKey holds a JSON list: the resolvers of all other names, instead of the host's.
	UpstreamsKey = "upstreamNameservers"
)

// resolversAtMost is how many resolvers one list may name; more would not be asked within the time that clients wait.
const resolversAtMost = 8

// Settings say which resolvers are asked for names outside the cluster's domain. The zero value means the host's resolvers
// for all names.
type Settings struct {
	// Stubs are the resolvers ("address:port") of domains, which are in lower case and end with a dot.
	Stubs map[string][]string
	// Upstreams are the resolvers of all other names; empty: the host's resolvers.
	Upstreams []string
}

// ParseSettings reads the data of the ConfigMap. It reports every fault at once; the settings must not be used then. domain is
// the cluster's domain, own are the addresses of this DNS server, to which no question can be forwarded.
func ParseSettings(data map[string]string, domain string, own []netip.Addr) (Settings, error) {
	var s Settings
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	var stubs map[string][]string
	if text := data[StubDomainsKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &stubs); err != nil {
			fault(`%s is not JSON like {"example.com": ["192.0.2.53"]}: %w`, StubDomainsKey, err)
		}
	}
	domain = fqdn(domain)
	for _, name := range slices.Sorted(maps.Keys(stubs)) {
		stub := fqdn(name)
		list, err := resolverList(stubs[name], own)
		switch {
		case stub == "." || !isDomain(stub):
			fault("%s: %q is no domain", StubDomainsKey, name)
		case dns.IsSubDomain(domain, stub):
			fault("%s: %s is in the cluster's domain %s, whose names are answered here", StubDomainsKey, name, domain)
		case err != nil:
			fault("%s: %s: %w", StubDomainsKey, name, err)
		case len(list) == 0:
			fault("%s: %s has no resolver: name one by its address", StubDomainsKey, name)
		default:
			if s.Stubs == nil {
				s.Stubs = make(map[string][]string)
			}
			s.Stubs[stub] = list
		}
	}
	if text := data[UpstreamsKey]; text != "" {
		var names []string
		if err := json.Unmarshal([]byte(text), &names); err != nil {
			fault(`%s is not JSON like ["192.0.2.53", "198.51.100.53:5353"]: %w`, UpstreamsKey, err)
		}
		list, err := resolverList(names, own)
		if err != nil {
			fault("%s: %w", UpstreamsKey, err)
		}
		s.Upstreams = list
	}
	return s, errors.Join(faults...)
}

func isDomain(name string) bool {
	_, ok := dns.IsDomainName(name)
	return ok
}

func fqdn(name string) string { return strings.ToLower(strings.Trim(name, ".")) + "." }

// resolverList parses addresses, with or without a port.
func resolverList(names []string, own []netip.Addr) ([]string, error) {
	if len(names) > resolversAtMost {
		return nil, fmt.Errorf("%d resolvers are named, at most %d are asked", len(names), resolversAtMost)
	}
	var out []string
	for _, name := range names {
		at, err := netip.ParseAddrPort(name)
		if err != nil {
			a, err := netip.ParseAddr(name)
			if err != nil {
				return nil, fmt.Errorf("%q is neither an address nor an address with a port", name)
			}
			at = netip.AddrPortFrom(a, 53)
		}
		if slices.Contains(own, at.Addr().Unmap()) {
			return nil, fmt.Errorf("%s is the cluster's own DNS, which would forward questions to itself", name)
		}
		out = append(out, at.String())
	}
	return out, nil
}

// resolvers returns the resolvers to ask for a name in lower case: those of the longest stub domain that contains it, else the
// others. hosts is true when these are the host's.
func (s *Settings) resolvers(name string) (list []string, hosts bool) {
	if s != nil && len(s.Stubs) > 0 {
		for at, end := 0, false; !end; at, end = dns.NextLabel(name, at) {
			if list, ok := s.Stubs[name[at:]]; ok {
				return list, false
			}
		}
	}
	if s == nil || len(s.Upstreams) == 0 {
		return nil, true
	}
	return s.Upstreams, false
}
