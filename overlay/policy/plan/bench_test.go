package plan

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/overlay/policy/policytest"
)

// large is a cluster of 10,000 pods in 100 namespaces, 100 of them here, with 1,000 policies.
func large() *State {
	d := policytest.Seeded(1)
	s := NewState()
	for i := range 100 {
		s.SetNamespace(fmt.Sprint("ns", i), d.Namespace("").Labels)
	}
	for i := range 10000 {
		s.SetPod(member(i, d.Labels()))
	}
	for i := range 1000 {
		s.SetPolicy(Compile(d.Policy(fmt.Sprint("ns", i%100), fmt.Sprint("np", i))))
	}
	return s
}

func member(i int, labels map[string]string) Pod {
	return Pod{
		PodKey: PodKey{fmt.Sprint("ns", i%100), fmt.Sprint("pod", i)}, UID: types.UID(fmt.Sprint(i)), Labels: labels,
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 244, byte(i / 250), byte(i % 250)})}, Local: i%100 == i/100,
	}
}

// BenchmarkFirstChange is what a start costs, without the kernel.
func BenchmarkFirstChange(b *testing.B) {
	for b.Loop() {
		s := large()
		s.Change()
		s.Accept()
	}
}

// BenchmarkPodElsewhere is one pod of another node that comes or goes.
func BenchmarkPodElsewhere(b *testing.B) { benchmarkPod(b, 1) }

// BenchmarkPodHere is one of this node.
func BenchmarkPodHere(b *testing.B) { benchmarkPod(b, 0) }

func benchmarkPod(b *testing.B, i int) {
	s := large()
	s.Change()
	s.Accept()
	elements := 0
	for n := 0; b.Loop(); n++ {
		p := member(i, map[string]string{"app": "a"})
		if n%2 == 0 {
			s.DeletePod(p.PodKey, p.UID)
		} else {
			s.SetPod(p)
		}
		c := s.Change()
		for _, list := range c.Add {
			elements += len(list)
		}
		s.Accept()
	}
	b.ReportMetric(float64(elements)/float64(b.N), "elements/op")
}
