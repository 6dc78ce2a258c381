package e2e

import (
	"fmt"
	"strings"
	"testing"
)

// TestNetCheckNamesWhatIsBroken: `balsa net check` finds nothing on a healthy cluster, names the fault that a test
// causes, and leaves nothing behind. `balsa net routes` shows the way to every node's pods.
func TestNetCheckNamesWhatIsBroken(t *testing.T) {
	s := newSeveral(t, 1, 2, 0)
	s.form()
	first, one, two := s.servers[0], s.agents[0], s.agents[1]
	check := func() (string, error) {
		return first.Balsa(t.Context(), "net", "check", "--outside-name=", "--timeout=2m")
	}
	first.eventually("the network is sound", func() error { // routes to pods are made a moment after the nodes are ready
		out, err := check()
		if err == nil && !strings.Contains(out, "nothing is broken") {
			err = fmt.Errorf("no word of it:\n%s", out)
		}
		return err
	})
	settingsOfDNSReachNodes(s)
	routes, err := first.Balsa(t.Context(), "net", "routes")
	s.must(err)
	for _, c := range s.agents {
		if !strings.Contains(routes, " via "+c.Addr.String()+"\n") {
			t.Errorf("no route by %s:\n%s", c.Addr, routes)
		}
	}

	script := `nft add table ip test; nft 'add chain ip test in { type filter hook prerouting priority -300 ; }'
		nft add rule ip test in iifname eth0 ip saddr 10.244.0.0/16 drop; nft add rule ip test in iifname eth0 tcp dport 30000-32767 drop`
	if out, err := two.Command(t.Context(), "sh", "-ec", script).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := check()
	if err == nil {
		t.Errorf("the exit status says that all is well")
	}
	t.Log("\n" + out)
	for _, want := range []string{
		fmt.Sprintf("node %s → node %s: pod to pod: no answer; packets with pods' addresses", one.NodeName(), two.NodeName()),
		fmt.Sprintf("node %s → node %s: NodePort: no answer", one.NodeName(), two.NodeName()),
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	first.eventually("nothing of the checks is left", func() error {
		left, err := first.Kubectl(t.Context(), "get", "namespaces", "-l", "balsa.dev/net-check", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("left: %s", left)
		}
		return err
	})
	for _, c := range s.agents {
		first.eventually("no probes are left on "+c.NodeName(), func() error {
			left, err := c.Command(t.Context(), "ls", c.DataDir+"/agent/network/check").CombinedOutput()
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("left: %s", left)
			}
			return err
		})
	}
}

// settingsOfDNSReachNodes: every node reads the ConfigMap with the upstream name servers, with its own rights.
func settingsOfDNSReachNodes(s *several) {
	s.t.Helper()
	first := s.servers[0]
	if out, err := first.Kubectl(s.t.Context(), "create", "configmap", "balsa-dns", "-n", "kube-system", "--from-literal=stubDomains=nonsense"); err != nil {
		s.t.Fatalf("%v\n%s", err, out)
	}
	for _, c := range s.agents {
		first.eventually(c.NodeName()+" says that the settings cannot be followed", func() error {
			if !strings.Contains(c.Log(), "cannot use the DNS settings") {
				return fmt.Errorf("not a word:\n%s", tail(c.Log(), 5))
			}
			return nil
		})
	}
}
