package criconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const hostResolvConf = `# written by something
; and something else
nameserver 192.0.2.53
nameserver 127.0.0.53 # stub
search old.example
search corp.example. lan .
options timeout:1 attempts:2
options timeout:3 rotate
`

func TestResolverConfigurationOfPods(t *testing.T) {
	one, two := "1", "2"
	for name, tt := range map[string]struct {
		policy  v1.DNSPolicy
		host    bool // host network
		extra   *v1.PodDNSConfig
		servers string
		search  string
		options string
	}{
		"cluster first":               {v1.DNSClusterFirst, false, nil, "10.96.0.10", "ns.svc.cluster.local svc.cluster.local cluster.local corp.example lan", "ndots:5"},
		"left out":                    {"", false, nil, "10.96.0.10", "ns.svc.cluster.local svc.cluster.local cluster.local corp.example lan", "ndots:5"},
		"cluster first, host network": {v1.DNSClusterFirst, true, nil, "192.0.2.53 127.0.0.53", "corp.example lan", "timeout:3 attempts:2 rotate"},
		"left out, host network":      {"", true, nil, "192.0.2.53 127.0.0.53", "corp.example lan", "timeout:3 attempts:2 rotate"},
		"cluster first with host network": {v1.DNSClusterFirstWithHostNet, true, nil, "10.96.0.10",
			"ns.svc.cluster.local svc.cluster.local cluster.local corp.example lan", "ndots:5"},
		// What listens at the host's loopback address cannot be reached from a pod; the cluster's DNS asks it.
		"default": {v1.DNSDefault, false, nil, "192.0.2.53 10.96.0.10", "corp.example lan", "timeout:3 attempts:2 rotate"},
		"none": {v1.DNSNone, false, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Searches: []string{"a.example"},
			Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}, "192.0.2.1", "a.example", "ndots:2 edns0"},
		"more": {v1.DNSClusterFirst, false, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "10.96.0.10"}, Searches: []string{"lan", "b.example"},
			Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &one}}}, "10.96.0.10 192.0.2.1",
			"ns.svc.cluster.local svc.cluster.local cluster.local corp.example lan b.example", "ndots:1"},
	} {
		t.Run(name, func(t *testing.T) {
			dns, warnings, err := podDNS(t, []string{"10.96.0.10"}, v1.PodSpec{DNSPolicy: tt.policy, HostNetwork: tt.host, DNSConfig: tt.extra})
			if err != nil || len(warnings) > 0 {
				t.Fatalf("%v %v", err, warnings)
			}
			for _, row := range [][2]string{{strings.Join(dns.servers, " "), tt.servers}, {strings.Join(dns.searches, " "), tt.search}, {strings.Join(dns.options, " "), tt.options}} {
				if row[0] != row[1] {
					t.Errorf("%q, want %q", row[0], row[1])
				}
			}
		})
	}
}

type resolvConf struct{ servers, searches, options []string }

func podDNS(t *testing.T, cluster []string, spec v1.PodSpec) (resolvConf, []Warning, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(hostResolvConf), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &Config{ResolvConf: path, ClusterDNS: cluster, ClusterDomain: "cluster.local"}
	dns, warnings, err := c.dnsConfig(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}, Spec: spec})
	if err != nil {
		return resolvConf{}, nil, err
	}
	return resolvConf{dns.Servers, dns.Searches, dns.Options}, warnings, nil
}

func TestResolverConfigurationHasLimits(t *testing.T) {
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprintf("s%d.example", i))
	}
	long := strings.Repeat("x", 60)
	wide := make([]string, 30)
	for i := range wide {
		wide[i] = fmt.Sprintf("%d.%s.%s.example", i, long, long)
	}
	for name, tt := range map[string]struct {
		extra    v1.PodDNSConfig
		servers  int
		searches int
		warning  string
	}{
		"servers":        {v1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"}, Searches: many[:1]}, 3, 1, "Nameserver limits"},
		"search paths":   {v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Searches: many}, 1, 32, "Search Line limits"},
		"search line":    {v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Searches: wide}, 1, 15, "Search Line limits"},
		"one long path":  {v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}, Searches: []string{"a", strings.Repeat("x", 254), "b"}}, 1, 2, "Search Line limits"},
		"just as it may": {v1.PodDNSConfig{Nameservers: []string{"192.0.2.1", "192.0.2.2", "192.0.2.3"}, Searches: many[:32]}, 3, 32, ""},
	} {
		t.Run(name, func(t *testing.T) {
			dns, warnings, err := podDNS(t, []string{"10.96.0.10"}, v1.PodSpec{DNSPolicy: v1.DNSNone, DNSConfig: &tt.extra})
			if err != nil || len(dns.servers) != tt.servers || len(dns.searches) != tt.searches || len(strings.Join(dns.searches, " ")) > maxSearchChars {
				t.Errorf("%d servers, %d search paths with %d characters, %v", len(dns.servers), len(dns.searches), len(strings.Join(dns.searches, " ")), err)
			}
			if tt.warning == "" && len(warnings) > 0 || tt.warning != "" && (len(warnings) != 1 || warnings[0].Reason != "DNSConfigForming" || !strings.HasPrefix(warnings[0].Text, tt.warning)) {
				t.Errorf("warnings %v", warnings)
			}
		})
	}
	dns, warnings, err := podDNS(t, nil, v1.PodSpec{DNSPolicy: v1.DNSClusterFirst})
	if err != nil || len(dns.servers) != 2 || len(warnings) != 1 || warnings[0].Reason != "MissingClusterDNS" {
		t.Errorf("without a cluster DNS: %v %v %v", dns, warnings, err)
	}
}
