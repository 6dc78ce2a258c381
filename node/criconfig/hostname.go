package criconfig

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
)

const (
	maxHostname = 63
	maxFQDN     = 64 // the kernel's maximum
)

// hostname returns the pod's host name, and the domain in which the cluster's DNS has it, "" when it has none.
func (c *Config) hostname(pod *v1.Pod) (host, domain string) {
	host = pod.Name
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	if pod.Spec.Hostname != "" {
		host = pod.Spec.Hostname
	}
	if len(host) > maxHostname {
		host = strings.TrimRight(host[:maxHostname], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, c.ClusterDomain)
	}
	return host, domain
}

func (c *Config) kernelHostname(pod *v1.Pod) (string, error) {
	host, domain := c.hostname(pod)
	if pod.Spec.SetHostnameAsFQDN == nil || !*pod.Spec.SetHostnameAsFQDN || domain == "" {
		return host, nil
	}
	fqdn := host + "." + domain
	if len(fqdn) > maxFQDN {
		return "", fmt.Errorf("failed to construct FQDN from Pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)",
			fqdn, maxFQDN, len(fqdn))
	}
	return fqdn, nil
}

// hostsFile returns the content of a pod's /etc/hosts, in upstream's form.
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

// writeHosts writes the pod's hosts file. It overwrites the file and does not rename another over it, because containers have
// mounted this very file.
func (c *Config) writeHosts(path string, in ContainerInput) error {
	b, err := c.hostsFile(in.Pod, in.PodIPs)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), DirMode); err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}
