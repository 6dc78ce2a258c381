package rules

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/policy/plan"
)

var sizes = []int{100, 10000}

func pod(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}) }

// manyPods makes a table from nothing: one set with as many pods, 100 isolated pods of this node, and a chain for each ten
// of them.
func manyPods(count int) *plan.Change {
	set := plan.Set{Name: "pods-a", Kind: plan.Addresses}
	for i := range count {
		set.Elements = append(set.Elements, plan.Element{Address: pod(i)})
	}
	c := &plan.Change{Rebuild: true, NewSets: []plan.Set{set}}
	c.AddVerdicts[plan.Ingress] = map[netip.Addr]string{}
	for i := range 100 {
		name := fmt.Sprint("pod-in-", i/10)
		if i%10 == 0 {
			c.NewChains = append(c.NewChains, plan.Chain{Name: name, Rules: []plan.Rule{
				{Protocol: plan.TCP, From: 80, To: 80, Peers: set.Name, Verdict: plan.Allow}, {Verdict: plan.Deny},
			}})
		}
		c.AddVerdicts[plan.Ingress][pod(i)] = name
		c.AddSelf = append(c.AddSelf, pod(i))
	}
	return c
}

func opened(b *testing.B, count int) *Tables {
	b.Helper()
	tables, err := Open(Config{IPv6: true, Bridge: "balsa0"}, nettest.Open(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(tables.Close)
	apply(b, tables, manyPods(count))
	return tables
}

func apply(b *testing.B, tables *Tables, c *plan.Change) {
	b.Helper()
	if err := tables.Apply(c); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkChange is one pod that comes or goes, in a set that is there.
func BenchmarkChange(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tables := opened(b, size)
			one := map[string][]plan.Element{"pods-a": {{Address: pod(size)}}}
			for turn := 0; b.Loop(); turn++ {
				c := &plan.Change{Add: one}
				if turn%2 == 1 {
					c = &plan.Change{Remove: one}
				}
				apply(b, tables, c)
			}
		})
	}
}

// BenchmarkFromNothing makes the tables in place of those that are there.
func BenchmarkFromNothing(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tables, c := opened(b, size), manyPods(size)
			for b.Loop() {
				apply(b, tables, c)
			}
		})
	}
}

// BenchmarkRead reads all that the kernel holds.
func BenchmarkRead(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			tables := opened(b, size)
			for b.Loop() {
				if found, err := tables.Read(); err != nil || found == nil {
					b.Fatalf("found %v: %v", found != nil, err)
				}
			}
		})
	}
}
