package loadbalancer

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/leader/workqueue"
)

func pools(t testing.TB, text string) Pools {
	t.Helper()
	p, err := ParsePools(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func addrs(list ...string) []netip.Addr {
	var out []netip.Addr
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// ask is a request of the Service named, made the more recently the later its name is in the alphabet.
func ask(name, wanted string, held ...string) request {
	r := request{key: workqueue.Key{Namespace: "d", Name: name}, created: time.Unix(int64(name[0]), 0), held: addrs(held...), want: []wish{{v4: true}}}
	if wanted != "" {
		r.want[0].address = netip.MustParseAddr(wanted)
	}
	return r
}

func TestWhatServicesGet(t *testing.T) {
	v6 := wish{}
	both := func(r request, optional bool) request {
		v6 := v6
		v6.optional = optional
		r.want = append(r.want, v6)
		return r
	}
	for _, c := range []struct {
		name, pools string
		used        map[netip.Addr]string
		requests    []request
		leaving     []netip.Addr
		want        string // name=addresses[!reason], in the order of the requests
	}{
		{name: "the lowest free one, oldest first", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("b", ""), ask("a", "")}, want: "b=10.0.0.6 a=10.0.0.5"},
		{name: "what it has", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("a", ""), ask("b", "", "10.0.0.5")}, want: "a=10.0.0.6 b=10.0.0.5"},
		{name: "the one it asks for, whoever is older", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("a", ""), ask("b", "10.0.0.5")}, want: "a=10.0.0.6 b=10.0.0.5"},
		{name: "two ask for one", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("b", "10.0.0.5"), ask("a", "10.0.0.5")}, want: "b=!AddressInUse a=10.0.0.5"},
		{name: "who has it keeps it from an older one", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("a", "10.0.0.5"), ask("b", "", "10.0.0.5")}, want: "a=!AddressInUse b=10.0.0.5"},
		{name: "who asks in vain keeps what it has", pools: "10.0.0.5-10.0.0.9", requests: []request{ask("a", "10.0.0.6", "10.0.0.5"), ask("b", "", "10.0.0.6")}, want: "a=10.0.0.5!AddressInUse b=10.0.0.6"},
		{name: "what somebody still has is not given away", pools: "10.0.0.5-10.0.0.6", requests: []request{ask("a", "10.0.0.6", "10.0.0.5"), ask("b", "")}, want: "a=10.0.0.6 b=!PoolExhausted"},
		{name: "what is being given back is not given away", pools: "10.0.0.5", requests: []request{ask("a", "")}, leaving: addrs("10.0.0.5"), want: "a=!PoolExhausted"},
		{name: "outside", pools: "10.0.0.5", requests: []request{ask("a", "10.0.0.4")}, want: "a=!AddressNotInPool"},
		{name: "a node's address", pools: "10.0.0.5-10.0.0.6", used: map[netip.Addr]string{netip.MustParseAddr("10.0.0.5"): "the node n"}, requests: []request{ask("a", ""), ask("b", "10.0.0.5")}, want: "a=10.0.0.6 b=!AddressInUse"},
		{name: "full", pools: "10.0.0.5", requests: []request{ask("a", ""), ask("b", "")}, want: "a=10.0.0.5 b=!PoolExhausted"},
		{name: "the pool shrank", pools: "10.0.0.8-10.0.0.9", requests: []request{ask("a", "", "10.0.0.5"), ask("b", "", "10.0.0.8")}, want: "a=10.0.0.9 b=10.0.0.8"},
		{name: "the pool shrank to nothing", pools: "", requests: []request{ask("a", "", "10.0.0.5")}, want: "a=!NoPool"},
		{name: "one address at two Services", pools: "10.0.0.5-10.0.0.6", requests: []request{ask("b", "", "10.0.0.5"), ask("a", "", "10.0.0.5")}, want: "b=10.0.0.6 a=10.0.0.5"},
		{name: "both families", pools: "2001:db8::/126,10.0.0.5", requests: []request{both(ask("a", ""), false)}, want: "a=10.0.0.5+2001:db8::1"},
		{name: "no pool of a family it insists on", pools: "10.0.0.5", requests: []request{both(ask("a", ""), false)}, want: "a=10.0.0.5!NoPool"},
		{name: "no pool of a family it would like", pools: "10.0.0.5", requests: []request{both(ask("a", ""), true)}, want: "a=10.0.0.5"},
		{name: "a second pool", pools: "10.0.0.5,10.1.0.0/30", requests: []request{ask("a", ""), ask("b", ""), ask("c", ""), ask("d", "")}, want: "a=10.0.0.5 b=10.1.0.1 c=10.1.0.2 d=!PoolExhausted"},
	} {
		got := describe(c.requests, assign(world{pools: pools(t, c.pools), used: c.used}, c.requests, c.leaving))
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

func describe(requests []request, grants []grant) string {
	var out []string
	for i, g := range grants {
		var a []string
		for _, addr := range g.addresses {
			a = append(a, addr.String())
		}
		text := requests[i].key.Name + "=" + strings.Join(a, "+")
		if g.problem != nil {
			text += "!" + g.reason
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func TestWithoutKnownPoolsNothingIsGivenAndNothingTaken(t *testing.T) {
	requests := []request{ask("a", "", "10.0.0.5"), ask("b", "")}
	if got := describe(requests, assign(world{unknown: errNoPool}, requests, nil)); got != "a=10.0.0.5 b=!NoPool" {
		t.Fatal(got)
	}
}

// TestHistories lets Services come, go, change their minds and lose writes at random, with pools that grow and shrink, and
// holds after each step that no address is at two Services; and that it ends, with nobody waiting while an address is free.
func TestHistories(t *testing.T) {
	const seeds = 400
	for seed := range uint64(seeds) {
		h := newHistory(t, seed)
		for range 40 {
			h.step()
			h.pass(0.3)
			h.unique()
		}
		h.settle()
	}
}

type history struct {
	t       *testing.T
	seed    uint64
	r       *rand.Rand
	w       world
	made    int
	live    []request
	leaving []netip.Addr
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 1)), w: world{pools: pools(t, "10.0.0.1-10.0.0.6"), used: map[netip.Addr]string{}}}
}

func (h *history) address() netip.Addr {
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(1 + h.r.IntN(9))})
}

func (h *history) step() {
	switch n := h.r.IntN(10); {
	case n < 4 || len(h.live) == 0:
		h.made++
		s := request{key: workqueue.Key{Name: fmt.Sprint(h.made)}, created: time.Unix(int64(h.made/2), 0), want: []wish{{v4: true}}}
		if h.r.IntN(3) == 0 {
			s.want[0].address = h.address()
		}
		h.live = append(h.live, s)
	case n < 6:
		i := h.r.IntN(len(h.live))
		h.leaving = append(h.leaving, h.live[i].held...)
		h.live = slices.Delete(h.live, i, i+1)
	case n < 8:
		h.live[h.r.IntN(len(h.live))].want[0].address = [2]netip.Addr{h.address(), {}}[h.r.IntN(2)]
	case n < 9:
		h.w.pools = pools(h.t, []string{"10.0.0.1-10.0.0.6", "10.0.0.3-10.0.0.9", "10.0.0.1,10.0.0.5", "10.0.0.8"}[h.r.IntN(4)])
	default:
		h.w.used = map[netip.Addr]string{h.address(): "a node"}
	}
	h.r.Shuffle(len(h.live), func(i, j int) { h.live[i], h.live[j] = h.live[j], h.live[i] })
}

// pass is one look of the controller, of whose writes some are lost.
func (h *history) pass(lost float64) (changed bool) {
	grants := assign(h.w, h.live, h.leaving)
	if h.r.Float64() >= lost {
		h.leaving = nil
	}
	for _, i := range h.r.Perm(len(h.live)) {
		if slices.Equal(h.live[i].held, grants[i].addresses) {
			continue
		}
		changed = true
		if h.r.Float64() >= lost {
			h.live[i].held = grants[i].addresses
		}
	}
	return changed
}

func (h *history) unique() {
	holder := map[netip.Addr]string{}
	for _, s := range h.live {
		for _, a := range s.held {
			if other := holder[a]; other != "" {
				h.t.Fatalf("seed %d: %s at %s and %s", h.seed, a, other, s.key.Name)
			}
			holder[a] = s.key.Name
		}
	}
}

func (h *history) settle() {
	h.pass(0)
	for n := 0; h.pass(0); n++ {
		h.unique()
		if n > 2*len(h.live)+2 {
			h.t.Fatalf("seed %d: it does not end", h.seed)
		}
	}
	var usable, holding int
	for _, s := range h.w.pools {
		for a := s.first; s.contains(a); a = a.Next() {
			if h.w.used[a] == "" {
				usable++
			}
		}
	}
	waiting := false
	for _, s := range h.live {
		holding += len(s.held)
		for _, a := range s.held {
			if !h.w.pools.Contains(a) || h.w.used[a] != "" {
				h.t.Fatalf("seed %d: %s is not to be given out", h.seed, a)
			}
		}
		waiting = waiting || len(s.held) == 0 && !s.want[0].address.IsValid()
	}
	if waiting && holding < usable {
		h.t.Fatalf("seed %d: a Service waits and %d of %d addresses are free", h.seed, usable-holding, usable)
	}
}

func TestPoolsAreReadOrRefused(t *testing.T) {
	taken := map[string]netip.Prefix{"network of pods": netip.MustParsePrefix("10.244.0.0/16")}
	for _, c := range []struct{ text, fault string }{
		{"10.0.0.200-10.0.0.220, 192.168.7.0/28\n2001:db8::/120 10.0.0.1", ""},
		{"", ""},
		{"10.0.0.9-10.0.0.1", "write 10.0.0.1-10.0.0.9"},
		{"10.0.0.9-2001:db8::1", "give an address"},
		{"10.0.0.0/33", "give an address"},
		{"somewhere", "give an address"},
		{"10.244.3.4", "network of pods"},
		{"10.0.0.0/8", "network of pods"},
		{"224.0.0.1", "no address that a host"},
		{"100.0.0.0-200.0.0.0", "127.0.0.0/8"},
		{"fe80::/64", "no address that a host"},
		{"::ffff:10.0.0.1", "no address that a host"},
		{strings.Repeat("10.0.0.1 ", mostEntries+1), "more than"},
	} {
		_, err := ParsePools(c.text, taken)
		if (err == nil) != (c.fault == "") || err != nil && !strings.Contains(err.Error(), c.fault) {
			t.Errorf("%.40q: %v, want %q", c.text, err, c.fault)
		}
	}
	p := pools(t, "192.168.7.0/30,192.168.8.0/31,2001:db8::/126")
	for text, want := range map[string]bool{"192.168.7.0": false, "192.168.7.1": true, "192.168.7.2": true, "192.168.7.3": false,
		"192.168.8.0": true, "192.168.8.1": true, "2001:db8::": false, "2001:db8::1": true, "2001:db8::3": true, "2001:db8::4": false} {
		if got := p.Contains(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

func FuzzPools(f *testing.F) {
	f.Add("10.0.0.200-10.0.0.220,192.168.7.0/28,2001:db8::/120")
	f.Add("255.255.255.255/0 ::/0 ::-::1")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePools(text, nil)
		if err != nil {
			return
		}
		for _, g := range assign(world{pools: p}, []request{ask("a", ""), ask("b", "")}, nil) {
			for _, a := range g.addresses {
				if !p.Contains(a) {
					t.Fatalf("%q gave %s", text, a)
				}
			}
		}
	})
}

func BenchmarkAssign(b *testing.B) {
	w := world{pools: pools(b, "10.0.0.0/16")}
	var requests []request
	for i := range 10000 {
		requests = append(requests, request{key: workqueue.Key{Name: fmt.Sprint(i)}, want: []wish{{v4: true}}})
	}
	for i, g := range assign(w, requests, nil) {
		requests[i].held = g.addresses
	}
	b.ResetTimer()
	for b.Loop() {
		assign(w, requests, nil)
	}
}
