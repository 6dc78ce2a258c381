package rules

import (
	"fmt"
	"maps"
	"net/netip"
	"os/exec"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/balsahq/balsa/overlay/services"

	"github.com/balsahq/balsa/overlay/nettest"
)

// runNFT runs the command nft in the namespace.
func runNFT(t testing.TB, ns int, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + nettest.Path(ns), "nft"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func open(t testing.TB, ns int, v4 bool) *Table {
	t.Helper()
	cfg := Config{V4: v4, Bridge: "balsa0", Mark: 0x4000, Tunnel: 8472, VXLAN: true}
	cfg.Pods = []netip.Prefix{netip.MustParsePrefix("fd00::/48")}
	if v4 {
		cfg.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}
	}
	cfg.NodePods = cfg.Pods
	table, err := Open(cfg, ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(table.Close)
	return table
}

// drawService makes the ports of a service, of few addresses and ports, so that services want the same ones.
func drawService(t *rapid.T, name string, v4 bool) []services.Service {
	small := func(label string, n int) int { return rapid.IntRange(0, n).Draw(t, label) }
	addr := func(kind, n int) netip.Addr {
		if v4 {
			return netip.AddrFrom4([4]byte{10, byte(kind), 0, byte(n)})
		}
		return netip.MustParseAddr(fmt.Sprintf("fd00:%x::%x", kind, n))
	}
	var out []services.Service
	for i := range small("ports", 2) {
		s := services.Service{
			Name: fmt.Sprintf("%s:%d", name, i), Port: uint16(80 + small("port", 1)), Affinity: time.Duration(small("sticky", 1)*30) * time.Second,
			Protocol:   rapid.SampledFrom([]services.Protocol{services.TCP, services.UDP, services.SCTP}).Draw(t, "protocol"),
			ClusterIPs: []netip.Addr{addr(96, small("ip", 4))}, InternalLocal: small("internal", 3) == 0, ExternalLocal: small("external", 1) == 0,
			NodePort: uint16(rapid.SampledFrom([]int{0, 30000, 30001}).Draw(t, "node port")),
		}
		if small("balanced", 1) == 1 {
			s.LoadBalancer = []netip.Addr{addr(97, small("lb", 2))}
			if small("guarded", 1) == 1 {
				s.Sources = []netip.Prefix{netip.PrefixFrom(addr(small("from", 2), 0), 24)}
			}
		}
		for n := range small("backends", 5) {
			b := netip.AddrPortFrom(addr(244, n), 8080)
			if small("gone", 3) == 0 {
				continue
			}
			s.Everywhere = append(s.Everywhere, b)
			if n%2 == 0 {
				s.Here, s.Local = append(s.Here, b), append(s.Local, b)
			}
		}
		out = append(out, s)
	}
	return out
}

// drawSources makes what a few members may send through the tunnel.
func drawSources(t *rapid.T, v4 bool) (members []netip.Addr, sources []services.TunnelSource) {
	for n := range rapid.IntRange(0, 3).Draw(t, "members") {
		member := netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
		if !v4 {
			member = netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", n))
		}
		members = append(members, member)
		for i, network := range []string{"10.244.%d.0/24", "10.245.%d.128/25", "192.0.2.%d/32", "fd00:244:0:%d::/64", "2001:db8::%d/128"} {
			if rapid.Bool().Draw(t, "has") {
				sources = append(sources, services.TunnelSource{Member: member, Network: netip.MustParsePrefix(fmt.Sprintf(network, 8*n+i))})
			}
		}
	}
	return members, sources
}

// canonical is the table without what depends on how it came about: the order of backends, how often keys are in use.
func canonical(t *services.Table) *services.Table {
	out := *t
	out.Groups = maps.Clone(t.Groups)
	for id, g := range out.Groups {
		g.Backends = slices.SortedFunc(slices.Values(g.Backends), netip.AddrPort.Compare)
		out.Groups[id] = g
	}
	out.Ways, out.Hairpin, out.Members = make(services.Counted[services.Way]), once(t.Hairpin), once(t.Members)
	out.Sources = once(t.Sources)
	for _, x := range t.Services {
		out.Ways[x.Lead.Way], out.Ways[x.Outside.Way] = 1, 1
	}
	for _, x := range t.Ports {
		out.Ways[x.Lead.Way], out.Ways[x.Outside.Way] = 1, 1
	}
	return &out
}

func once[K comparable](c services.Counted[K]) services.Counted[K] {
	out := make(services.Counted[K])
	for k := range c {
		out[k] = 1
	}
	return out
}

func same(t interface{ Fatalf(string, ...any) }, what string, got, want *services.Table) {
	if got == nil || !reflect.DeepEqual(canonical(got), canonical(want)) {
		t.Fatalf("%s:\n%+v\nwant\n%+v", what, got, want)
	}
}

// TestChangesLeadWhereBuildingAnewDoes applies random changes one by one, and compares memory and kernel with a table made
// at once.
func TestChangesLeadWhereBuildingAnewDoes(t *testing.T) {
	for _, v4 := range []bool{true, false} {
		t.Run(fmt.Sprintf("v4=%t", v4), func(t *testing.T) {
			ns := nettest.Open(t)
			rapid.Check(t, func(r *rapid.T) {
				if err := Remove(ns); err != nil {
					r.Fatalf("%v", err)
				}
				table, err := Open(open(t, ns, v4).layout.cfg, ns)
				if err != nil {
					r.Fatalf("%v", err)
				}
				defer table.Close()
				plan, now := services.NewPlan(), map[string][]services.Service{}
				var members []netip.Addr
				var sources []services.TunnelSource
				for range rapid.IntRange(1, 8).Draw(r, "transactions") {
					for range rapid.IntRange(1, 3).Draw(r, "changes") {
						name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(r, "name")
						now[name] = drawService(r, name, v4)
						plan.SetService(name, now[name])
					}
					members, sources = drawSources(r, v4)
					plan.SetMembers(members, sources)
					if rapid.IntRange(0, 5).Draw(r, "look") == 0 {
						table.Forget()
					}
					if _, err := table.Apply(plan); err != nil {
						r.Fatalf("%v", err)
					}
				}
				anew := services.NewPlan()
				anew.SetMembers(members, sources)
				for name, ports := range now {
					anew.SetService(name, ports)
				}
				same(r, "in memory", plan.Table(), anew.Table())
				have, err := table.read(plan.Table())
				if err != nil {
					r.Fatalf("%v", err)
				}
				same(r, "in the kernel", have, anew.Table())
				if !maps.Equal(once(have.Ways), once(plan.Table().Ways)) {
					r.Fatalf("ways in the kernel: %v, want %v", have.Ways, plan.Table().Ways)
				}
				runNFT(t, ns, "list", "ruleset")
			})
		})
	}
}
