package criconfig

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits of a pod's resolver configuration (k8s.io/kubernetes/pkg/apis/core/validation). Old resolvers crash at a search path
// that is longer than a DNS name may be.
const (
	maxNameservers = 3
	maxSearches    = 32
	maxSearchChars = 2048
	maxSearchPath  = 253
)

// Reasons of the events about a pod's resolver configuration.
const (
	reasonDNSConfig  = "DNSConfigForming"
	reasonClusterDNS = "MissingClusterDNS"
)

// Warning is an event about the resolver configuration of a pod.
type Warning struct{ Reason, Text string }

// dnsConfig returns the content of a pod's resolv.conf by its DNS policy and DNS config.
func (c *Config) dnsConfig(pod *v1.Pod) (*runtimeapi.DNSConfig, []Warning, error) {
	host, err := c.hostDNS()
	if err != nil {
		return nil, nil, err
	}
	dns, warnings := &runtimeapi.DNSConfig{}, []Warning(nil)
	policy := cmp.Or(pod.Spec.DNSPolicy, v1.DNSClusterFirst) // manifests of static pods may leave it out
	switch {
	case policy == v1.DNSNone:
	case policy == v1.DNSDefault, policy == v1.DNSClusterFirst && pod.Spec.HostNetwork:
		dns = c.inherited(host, pod.Spec.HostNetwork)
	case len(c.ClusterDNS) == 0:
		warnings = append(warnings, Warning{reasonClusterDNS, fmt.Sprintf(
			"pod: %q. kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			fmt.Sprintf("%s_%s(%s)", pod.Name, pod.Namespace, pod.UID), v1.DNSClusterFirst, v1.DNSDefault)})
		dns = host
	default: // ClusterFirst, ClusterFirstWithHostNet, and values that the API does not know
		dns.Servers = slices.Clone(c.ClusterDNS)
		dns.Searches = append([]string{
			pod.Namespace + ".svc." + c.ClusterDomain, "svc." + c.ClusterDomain, c.ClusterDomain,
		}, host.Searches...)
		dns.Options = []string{"ndots:5"}
	}
	if pod.Spec.DNSConfig != nil {
		mergeDNSConfig(dns, pod.Spec.DNSConfig)
	}
	dns.Searches = unique(dns.Searches)
	return dns, append(warnings, applyLimits(dns)...), nil
}

// inherited returns the host's configuration for a pod. A pod with its own network cannot reach a resolver at the host's
// loopback address, so it gets the cluster's DNS in its place, which forwards to that resolver.
func (c *Config) inherited(host *runtimeapi.DNSConfig, hostNetwork bool) *runtimeapi.DNSConfig {
	if hostNetwork || len(c.ClusterDNS) == 0 {
		return host
	}
	var servers []string
	for _, s := range host.Servers {
		if a, err := netip.ParseAddr(s); err == nil && a.IsLoopback() {
			servers = append(servers, c.ClusterDNS...)
		} else {
			servers = append(servers, s)
		}
	}
	host.Servers = unique(servers)
	return host
}

// applyLimits shortens a configuration to the limits of resolvers and returns warnings with upstream's texts.
func applyLimits(dns *runtimeapi.DNSConfig) (warnings []Warning) {
	if len(dns.Servers) > maxNameservers {
		dns.Servers = dns.Servers[:maxNameservers]
		warnings = append(warnings, Warning{reasonDNSConfig,
			"Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(dns.Servers, " ")})
	}
	var searches []string
	chars := 0
	for i, s := range dns.Searches {
		if i >= maxSearches || chars+len(s) > maxSearchChars {
			break
		}
		if len(s) <= maxSearchPath {
			searches = append(searches, s)
			chars += len(s) + 1
		}
	}
	if len(searches) < len(dns.Searches) {
		warnings = append(warnings, Warning{reasonDNSConfig,
			"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(searches, " ")})
	}
	dns.Searches = searches
	return warnings
}

func mergeDNSConfig(dns *runtimeapi.DNSConfig, extra *v1.PodDNSConfig) {
	dns.Servers = unique(append(dns.Servers, extra.Nameservers...))
	dns.Searches = append(dns.Searches, extra.Searches...)
	for _, o := range extra.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		dns.Options = withOption(dns.Options, text)
	}
}

// withOption adds an option, or replaces the option with the same name.
func withOption(list []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, have := range list {
		if n, _, _ := strings.Cut(have, ":"); n == name {
			list[i] = option
			return list
		}
	}
	return append(list, option)
}

func unique(in []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range in {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// hostDNS reads the host's resolver configuration.
func (c *Config) hostDNS() (*runtimeapi.DNSConfig, error) {
	b, err := os.ReadFile(c.ResolvConf)
	if os.IsNotExist(err) {
		return &runtimeapi.DNSConfig{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read host DNS configuration: %w", err)
	}
	dns := &runtimeapi.DNSConfig{}
	sc := bufio.NewScanner(bytes.NewReader(b))
	for sc.Scan() {
		line, _, _ := strings.Cut(sc.Text(), "#")
		line, _, _ = strings.Cut(line, ";")
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		switch f[0] {
		case "nameserver":
			dns.Servers = append(dns.Servers, f[1])
		case "search":
			dns.Searches = dns.Searches[:0]
			for _, s := range f[1:] {
				if s != "." { // the root domain is always searched
					dns.Searches = append(dns.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range f[1:] {
				dns.Options = withOption(dns.Options, o)
			}
		}
	}
	return dns, nil
}
