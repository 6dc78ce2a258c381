package rules

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"

	"github.com/balsahq/balsa/overlay/nettest"
)

const endpointsEach = 5

// many makes a plan of services with five backends each, on one port.
func many(count int) *services.Plan {
	p := services.NewPlan()
	for i := range count {
		p.SetService(name(i), oneOfMany(i, 0))
	}
	return p
}

func name(i int) string { return fmt.Sprintf("ns/s%d", i) }

// oneOfMany is a service, with its first backend changed to another.
func oneOfMany(i, turn int) []services.Service {
	s := services.Service{Name: fmt.Sprintf("ns/s%d:web/TCP", i), Protocol: services.TCP, Port: 80}
	s.ClusterIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96 + byte(i>>16), byte(i >> 8), byte(i)})}
	for b := range endpointsEach {
		n := i*endpointsEach + b
		a := [4]byte{10, 128 + byte(n>>16), byte(n >> 8), byte(n)}
		if b == 0 && turn%2 == 1 {
			a[1] += 32
		}
		s.Everywhere = append(s.Everywhere, netip.AddrPortFrom(netip.AddrFrom4(a), 8080))
	}
	return []services.Service{s}
}

var sizes = []int{100, 1000, 10000}

// BenchmarkChange is one backend replaced, from the plan to the kernel.
func BenchmarkChange(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			table, plan := open(b, nettest.Open(b), true), many(size)
			apply(b, table, plan)
			defer cpu(b)()
			for turn := 1; b.Loop(); turn++ {
				plan.SetService(name(size/2), oneOfMany(size/2, turn))
				apply(b, table, plan)
			}
		})
	}
}

// BenchmarkCount is a service that gets one backend more and one less by turns.
func BenchmarkCount(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			table, plan := open(b, nettest.Open(b), true), many(size)
			apply(b, table, plan)
			defer cpu(b)()
			for turn := 1; b.Loop(); turn++ {
				ports := oneOfMany(size/2, 0)
				ports[0].Everywhere = ports[0].Everywhere[turn%2:]
				plan.SetService(name(size/2), ports)
				apply(b, table, plan)
			}
		})
	}
}

// BenchmarkFromNothing makes the whole table in an empty namespace.
func BenchmarkFromNothing(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			ns := nettest.Open(b)
			table, plan := open(b, ns, true), many(size)
			defer cpu(b)()
			for b.Loop() {
				b.StopTimer()
				if err := Remove(ns); err != nil {
					b.Fatal(err)
				}
				table.Forget()
				b.StartTimer()
				apply(b, table, plan)
			}
		})
	}
}

// BenchmarkRestart looks at a kernel that is right already.
func BenchmarkRestart(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			table, plan := open(b, nettest.Open(b), true), many(size)
			apply(b, table, plan)
			for settled := false; !settled; { // the kernel enlarges its hash tables for a while
				table.Forget()
				settled = apply(b, table, plan).Empty()
			}
			defer cpu(b)()
			for b.Loop() {
				table.Forget()
				if delta := apply(b, table, plan); !delta.Empty() {
					b.Fatalf("changed %d services, %d groups", len(delta.Services), len(delta.Groups))
				}
			}
		})
	}
}

// BenchmarkMemory is what a plan takes.
func BenchmarkMemory(b *testing.B) {
	for _, size := range sizes {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var plan *services.Plan
			var before, after runtime.MemStats
			for b.Loop() {
				plan = nil
				runtime.GC()
				runtime.ReadMemStats(&before)
				plan = many(size)
				plan.TakeDelta()
				runtime.GC()
				runtime.ReadMemStats(&after)
			}
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB")
			runtime.KeepAlive(plan)
		})
	}
}

// cpu reports the processor time of each turn, the kernel's part of it included.
func cpu(b *testing.B) func() {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	start := used()
	return func() { b.ReportMetric(float64((used()-start).Microseconds())/float64(b.N), "cpu-µs/op") }
}

func apply(b *testing.B, table *Table, plan *services.Plan) *services.Delta {
	b.Helper()
	delta, err := table.Apply(plan)
	if err != nil {
		b.Fatal(err)
	}
	return delta
}
