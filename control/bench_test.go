package control_test

import (
	"runtime"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// heap is what the process holds after a collection, in MiB.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkStart is a server on an empty directory, from nothing to ready: keys made, store opened, objects written.
func BenchmarkStart(b *testing.B) {
	var ready time.Duration
	for b.Loop() {
		began := time.Now()
		r, err := start(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		ready += time.Since(began)
		if err := r.stop(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(ready.Milliseconds())/float64(b.N), "ms/ready")
}

// BenchmarkFirstWrites tells what the first write into groups costs, which makes their field schemas, and what the
// schemas hold.
func BenchmarkFirstWrites(b *testing.B) {
	var took time.Duration
	var held float64
	for b.Loop() {
		r, err := start(b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		client := clientsetB(b, r)
		before, began := heap(), time.Now()
		if _, err := client.CoreV1().ConfigMaps("default").Create(b.Context(), configMap("a", nil), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		if _, err := client.CoordinationV1().Leases("default").Create(b.Context(), lease, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
		took += time.Since(began)
		held += heap() - before
		if err := r.stop(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/writes")
	b.ReportMetric(held/float64(b.N), "MiB/held")
}

// BenchmarkCreateInProcess is one small write through the whole chain, without a network.
func BenchmarkCreateInProcess(b *testing.B) {
	client := clientsetB(b, shared).CoreV1().ConfigMaps("default")
	b.ReportAllocs()
	for b.Loop() {
		m := configMap("", nil)
		m.GenerateName = "bench-"
		if _, err := client.Create(b.Context(), m, metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGetInProcess is one read through the whole chain, without a network.
func BenchmarkGetInProcess(b *testing.B) {
	client := clientsetB(b, shared).CoreV1().Services("default")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Get(b.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}
