package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var networkRounds = flag.Int("network-rounds", 1, "how often TestNetworkOfFourHosts deletes each thing from the kernel and kills an agent")

// TestNetworkOfFourHosts: on four hosts of two subnets all pods, nodes and clients reach each other, also after entries
// are deleted from a kernel, and after an agent is restarted, killed in the middle of an update, moved to another
// address, lost or added. Streams that do not use the changed part lose no packet.
func TestNetworkOfFourHosts(t *testing.T) {
	h := newHosts(t)
	t.Logf("everybody reached everybody %.1f s after the pods ran", h.works("everybody reaches everybody").Seconds())
	h.servers[0].eventually("all pods answer for the Service", func() error { return h.backends(h.pods[h.all[1]].dial) })
	for _, step := range []struct {
		name string
		do   func(*hosts)
	}{
		{"what is deleted comes back", drift},
		{"an agent is restarted", restartedAgent},
		{"an agent is killed in the middle of updates", killedInUpdates},
		{"a host changes its address", movedHost},
		{"a host is lost", lostHost},
		{"a host joins", joiningHost},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(h.with(t)) }) {
			t.FailNow()
		}
	}
}

// with returns the same cluster for a step of the test.
func (h *hosts) with(t *testing.T) *hosts {
	inner := *h.several
	inner.t = t
	rebound := map[*cluster]*cluster{}
	out := &hosts{several: &inner, pods: map[*cluster]*webPod{}, web: h.web}
	rebind := func(list []*cluster) (out []*cluster) {
		for _, c := range list {
			if rebound[c] == nil {
				rebound[c] = &cluster{Host: c.Host, t: t}
			}
			out = append(out, rebound[c])
		}
		return out
	}
	out.all, out.servers, out.agents = rebind(h.all), rebind(h.servers), rebind(h.agents)
	for c, pod := range h.pods {
		out.pods[rebound[c]] = pod
	}
	t.Cleanup(func() { // changes of the step are kept for the next one
		h.all, h.pods, h.agents, h.spare = out.all, out.pods, out.agents, out.spare
	})
	return out
}

const tunnel = "balsa-vxlan"

// drift deletes entries on host 2. Hosts 0, 1 and 3 must not notice, and neither must streams of host 2 that do not use
// the deleted entries.
func drift(h *hosts) {
	victim := h.all[2]
	elsewhere := []*stream{h.stream(h.all[0], h.all[1]), h.stream(h.all[1], h.all[3])}
	beside := h.stream(victim, h.all[0]) // on one subnet: not through the tunnel
	shell := func(script string) func() error {
		return func() error {
			out, err := victim.Command(h.t.Context(), "sh", "-ec", script).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", script, err, out)
			}
			return nil
		}
	}
	for range *networkRounds {
		for _, deletion := range []struct {
			what   string
			do     func() error
			beside bool // whether the stream on one subnet must not notice
		}{
			{"the route to a host beyond the router", shell("ip route del " + podNetwork(h, 1)), true},
			{"the route to a neighbour", shell("ip route del " + podNetwork(h, 0)), false},
			{"neighbours in the tunnel", shell("ip neigh show dev " + tunnel + " nud permanent | while read address rest; do ip neigh del $address dev " + tunnel + "; done"), true}, // flush fails if the agent restores them while it runs
			{"stations of the tunnel", shell("bridge fdb show dev " + tunnel + " | while read mac rest; do bridge fdb del $mac dev " + tunnel + " $(echo $rest | sed 's/self.*//') self; done"), true},
			{"the tunnel's address", shell("ip addr flush dev " + tunnel + " || true"), true}, // if the agent restores it at once, ip reports that it is not gone
			{"the tunnel is set down", shell("ip link set " + tunnel + " down"), true},
			{"the tunnel", shell("ip link del " + tunnel), true},
			{"a rule", func() error { return deleteRules(victim, false) }, true},
			{"all rules", func() error { return deleteRules(victim, true) }, true},
		} {
			before := kernelOf(victim)
			h.must(deletion.do())
			began := time.Now()
			victim.eventually(deletion.what+" is back", func() error {
				if now := kernelOf(victim); now != before {
					return fmt.Errorf("before:\n%s\nnow:\n%s", before, now)
				}
				return nil
			})
			back := time.Since(began)
			h.works("everybody reaches everybody without " + deletion.what)
			h.t.Logf("%s: back after %s", deletion.what, back.Round(time.Millisecond))
			if back > 30*time.Second {
				h.t.Errorf("%s was gone for %s", deletion.what, back)
			}
			unharmed(h.t, elsewhere...)
			if lost, sent := beside.lost(); deletion.beside && lost > 0 {
				h.t.Errorf("%s: %s lost %d of %d datagrams", deletion.what, beside.name, lost, sent)
			}
		}
	}
}

func podNetwork(h *hosts, host int) string {
	return netip.PrefixFrom(h.pods[h.all[host]].ip, 24).Masked().String()
}

// kernelOf returns the routes to other hosts' pods and the number of rules as one text.
func kernelOf(c *cluster) string {
	var out []string
	for _, script := range []string{"ip route show", "ip neigh show dev " + tunnel + " nud permanent", "bridge fdb show dev " + tunnel, "ip -o addr show dev " + tunnel} {
		text, err := c.Command(c.t.Context(), "sh", "-c", script).Output()
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(string(text)) {
			// A link that was made again has another number.
			_, after, numbered := strings.Cut(line, ": "+tunnel)
			if !numbered {
				after = line
			}
			if !strings.Contains(after, "inet6") && !strings.Contains(after, "33:33:") {
				out = append(out, strings.TrimSpace(after))
			}
		}
	}
	slices.Sort(out)
	rules := 0
	err := eachRule(c, func(*nftables.Conn, *nftables.Rule) { rules++ })
	return strings.Join(out, "\n") + fmt.Sprintf("\n%d rules %v", rules, err)
}

// eachRule visits the rules of the overlay's tables on a host.
func eachRule(c *cluster, visit func(*nftables.Conn, *nftables.Rule)) error {
	ns, err := netns.GetFromName(c.Name)
	if err != nil {
		return err
	}
	defer ns.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return err
	}
	chains, err := conn.ListChains()
	if err != nil {
		return err
	}
	for _, chain := range chains {
		if chain.Table.Name != "balsa" {
			continue
		}
		rules, err := conn.GetRules(chain.Table, chain)
		if err != nil {
			return err
		}
		for _, r := range rules {
			visit(conn, r)
		}
	}
	return conn.Flush()
}

// deleteRules deletes the table of Services from a host's kernel, or one of its rules.
func deleteRules(c *cluster, all bool) error {
	var first *nftables.Rule
	err := eachRule(c, func(conn *nftables.Conn, r *nftables.Rule) {
		if first != nil {
			return
		}
		if first = r; all {
			conn.DelTable(r.Table)
			return
		}
		_ = conn.DelRule(r) // queued; Flush returns the result
	})
	if first == nil {
		err = errors.Join(err, errors.New("there is no rule to delete"))
	}
	return err
}

// restartedAgent stops an agent as an init system would: the network works without it, and after its start it changes
// no correct entry.
func restartedAgent(h *hosts) {
	agent := h.all[1]
	streams := []*stream{h.stream(agent, h.all[0]), h.stream(agent, h.all[3]), h.stream(h.all[2], agent)}
	before := kernelOf(agent)
	h.must(agent.Process().Stop(30 * time.Second))
	h.works("everybody reaches everybody without the agent")
	h.must(agent.Start("agent"))
	h.nodeIs(agent, "True")
	h.works("everybody reaches everybody after a restart")
	if after := kernelOf(agent); after != before {
		h.t.Errorf("a restart changed the kernel; before:\n%s\nafter:\n%s", before, after)
	}
	unharmed(h.t, streams...)
}

// nodeIs waits for a node's readiness.
func (h *hosts) nodeIs(c *cluster, ready string) {
	h.t.Helper()
	h.servers[0].eventually(c.NodeName()+" is ready: "+ready, h.servers[0].wants(ready, "get", "node", c.NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`))
}

// killedInUpdates kills an agent again and again while Services are created and deleted.
func killedInUpdates(h *hosts) {
	agent := h.all[1]
	streams := []*stream{h.stream(agent, h.all[0]), h.stream(agent, h.all[3])}
	client := h.clientWithin(h.servers[0], 10*time.Second).CoreV1().Services("default")
	web, err := client.Get(h.t.Context(), "web", metav1.GetOptions{})
	h.must(err)
	const names = 20
	there := map[int]bool{}
	ctx, stop := context.WithCancel(h.t.Context())
	defer stop()
	var joined sync.WaitGroup
	joined.Go(func() { // no other goroutine uses it until this one has ended
		for n := 0; ctx.Err() == nil; n = (n + 7) % names {
			var err error
			if name := fmt.Sprintf("churn-%d", n); there[n] {
				err = client.Delete(ctx, name, metav1.DeleteOptions{})
			} else {
				svc := web.DeepCopy()
				svc.ObjectMeta = metav1.ObjectMeta{Name: name}
				svc.Spec.ClusterIP, svc.Spec.ClusterIPs, svc.Spec.Ports[0].NodePort = "", nil, 0
				_, err = client.Create(ctx, svc, metav1.CreateOptions{})
			}
			if err == nil {
				there[n] = !there[n]
			}
		}
	})
	for range 2 + *networkRounds {
		<-time.After(time.Duration(rand.IntN(500)) * time.Millisecond)
		h.must(agent.Process().Kill9())
		h.must(agent.Start("agent"))
		<-time.After(time.Duration(500+rand.IntN(1500)) * time.Millisecond)
	}
	stop()
	joined.Wait()
	h.nodeIs(agent, "True")
	h.works("everybody reaches everybody after kills")
	list, err := client.List(h.t.Context(), metav1.ListOptions{})
	h.must(err)
	agent.eventually("every Service answers where the agent was killed", func() error {
		var faults []error
		for _, svc := range list.Items {
			if strings.HasPrefix(svc.Name, "churn-") {
				_, _, err := fetch(h.pods[agent].dial, "http://"+svc.Spec.ClusterIP)
				faults = append(faults, err)
			}
		}
		return errors.Join(faults...)
	})
	unharmed(h.t, streams...)
}

// movedHost gives an agent's host another address, as a new DHCP lease does, and restarts the agent.
func movedHost(h *hosts) {
	moved := h.all[3]
	elsewhere := []*stream{h.stream(h.all[0], h.all[1]), h.stream(h.all[2], h.all[0])}
	to := netip.MustParseAddr("10.98.1.99")
	h.must(h.net.Machines[3].ChangeAddress(to))
	h.must(moved.Process().Kill9())
	moved.Addr = to
	h.must(moved.Start("agent"))
	h.servers[0].eventually("the Node has the new address", h.servers[0].wants(to.String(), "get", "node", moved.NodeName(), "-o", "jsonpath={.status.addresses}"))
	h.t.Logf("everybody reached everybody %.1f s after the Node had its new address", h.works("everybody reaches everybody at the new address").Seconds())
	unharmed(h.t, elsewhere...)
}

// lostHost cuts a host's power and cable: no connection is routed to it any more.
func lostHost(h *hosts) {
	lost := h.all[3]
	elsewhere := []*stream{h.stream(h.all[0], h.all[1]), h.stream(h.all[2], h.all[0])}
	h.must(lost.Process().Kill9())
	h.must(h.net.Unplug(h.net.Machines[3]))
	began := time.Now()
	network := podNetwork(h, 3)
	delete(h.pods, lost)
	h.all, h.agents = h.all[:3], h.agents[:2]
	for _, c := range h.all {
		c.eventually("nobody is led to the lost host", func() error { return h.backends(h.pods[c].dial) })
	}
	h.t.Logf("nobody was led to the lost host after %.1f s", time.Since(began).Seconds())
	h.works("those who are left reach each other")
	h.servers[0].kubectl("delete", "node", lost.NodeName())
	for _, c := range h.all {
		c.eventually("its route is gone", func() error {
			if text := kernelOf(c); strings.Contains(text, network) {
				return errors.New(text)
			}
			return nil
		})
	}
	unharmed(h.t, elsewhere...)
}

// joiningHost adds a host to a running cluster.
func joiningHost(h *hosts) {
	elsewhere := []*stream{h.stream(h.all[0], h.all[1]), h.stream(h.all[2], h.all[0])}
	c := newHostOn(h.t, h.spare[0])
	h.join(c, "agent")
	began := time.Now()
	h.nodeIs(c, "True")
	h.all, h.agents = append(h.all, c), append(h.agents, c)
	h.learnPods()
	h.works("everybody reaches the new host")
	h.servers[0].eventually("its pod answers for the Service", func() error { return h.backends(h.pods[h.all[1]].dial) })
	h.t.Logf("a new host took part %.1f s after it was started", time.Since(began).Seconds())
	unharmed(h.t, elsewhere...)
}
