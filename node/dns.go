package node

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// dnsConfig is the resolv.conf of a pod by its DNS policy and DNS config.
func (c *Config) dnsConfig(pod *v1.Pod) (*runtimeapi.DNSConfig, error) {
	host, err := c.hostDNS()
	if err != nil {
		return nil, err
	}
	dns := &runtimeapi.DNSConfig{}
	policy := pod.Spec.DNSPolicy
	if policy == v1.DNSClusterFirst && pod.Spec.HostNetwork || policy == "" ||
		policy != v1.DNSNone && policy != v1.DNSDefault && len(c.ClusterDNS) == 0 {
		policy = v1.DNSDefault
	}
	switch policy {
	case v1.DNSNone:
	case v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet:
		dns.Servers = append(dns.Servers, c.ClusterDNS...)
		dns.Searches = append([]string{
			pod.Namespace + ".svc." + c.ClusterDomain, "svc." + c.ClusterDomain, c.ClusterDomain,
		}, host.Searches...)
		dns.Options = []string{"ndots:5"}
	default:
		dns = host
	}
	if pod.Spec.DNSConfig != nil {
		addDNS(dns, pod.Spec.DNSConfig)
	}
	dns.Searches = unique(dns.Searches)
	return dns, nil
}

func addDNS(dns *runtimeapi.DNSConfig, extra *v1.PodDNSConfig) {
	dns.Servers = unique(append(dns.Servers, extra.Nameservers...))
	dns.Searches = append(dns.Searches, extra.Searches...)
	for _, o := range extra.Options {
		text := o.Name
		if o.Value != nil && *o.Value != "" {
			text += ":" + *o.Value
		}
		replaced := false
		for i, have := range dns.Options {
			if name, _, _ := strings.Cut(have, ":"); name == o.Name {
				dns.Options[i], replaced = text, true
			}
		}
		if !replaced {
			dns.Options = append(dns.Options, text)
		}
	}
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
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				dns.Searches = append(dns.Searches, s)
			}
		case "options":
			dns.Options = f[1:]
		}
	}
	return dns, nil
}

// hostsFile is the /etc/hosts of a pod.
func (c *Config) hostsFile(pod *v1.Pod, podIPs []string) ([]byte, error) {
	var b bytes.Buffer
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile("/etc/hosts")
		if err != nil && !os.IsNotExist(err) {
			return nil, err
		}
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(host)
	} else {
		b.WriteString("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n")
		host, domain := c.hostname(pod)
		for _, ip := range podIPs {
			if domain != "" {
				fmt.Fprintf(&b, "%s\t%s.%s\t%s\n", ip, host, domain, host)
			} else {
				fmt.Fprintf(&b, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&b, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return b.Bytes(), nil
}
