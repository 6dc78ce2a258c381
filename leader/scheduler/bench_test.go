package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// BenchmarkSchedule places 10,000 pods on 5,000 nodes in three zones: the pure rate of the scheduling cycle, from
// refreshing the snapshot to assuming the pod. One iteration is one pod.
func BenchmarkSchedule(b *testing.B) {
	workloads := map[string]func(int) []func(*v1.Pod){
		"plain":   func(int) []func(*v1.Pod) { return nil },
		"service": func(int) []func(*v1.Pod) { return []func(*v1.Pod){schedulertest.Labelled("app", "web")} },
		"spread": func(int) []func(*v1.Pod) {
			return []func(*v1.Pod){schedulertest.Labelled("app", "web"),
				schedulertest.Spread("app", "web", v1.LabelTopologyZone, 5, v1.DoNotSchedule)}
		},
		"antiaffinity": func(i int) []func(*v1.Pod) {
			app := fmt.Sprintf("app-%d", i/100)
			return []func(*v1.Pod){schedulertest.Labelled("app", app), schedulertest.Far("app", app, v1.LabelHostname)}
		},
	}
	for name, with := range workloads {
		b.Run(name, func(b *testing.B) {
			var objects []runtime.Object
			for i := range 5000 {
				objects = append(objects, schedulertest.Node(fmt.Sprintf("node-%04d", i), "32", "256Gi",
					schedulertest.Label(v1.LabelTopologyZone, fmt.Sprintf("zone-%d", i%3))))
			}
			if name == "service" {
				objects = append(objects, &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
					Spec: v1.ServiceSpec{Selector: map[string]string{"app": "web"}}})
			}
			const perRun = 10000
			var cache *snapshot.Cache
			var listers *rules.Listers
			var snap *snapshot.Snapshot
			d := decider{filters: rules.Filters(), scores: rules.Scores(), rand: rand.New(rand.NewPCG(1, 2))}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if i%perRun == 0 {
					b.StopTimer()
					cache, listers = schedulertest.Cluster(objects...)
					snap = snapshot.New()
					cache.Refresh(snap)
					b.StartTimer()
				}
				opts := append([]func(*v1.Pod){schedulertest.Requests("100m", "500Mi")}, with(i%perRun)...)
				pod := schedulertest.Info(schedulertest.Pod(fmt.Sprintf("pod-%d", i), opts...))
				cache.Refresh(snap)
				v := d.decide(&rules.Cycle{Pod: pod, Snapshot: snap, Listers: listers})
				if v.node == nil {
					b.Fatal(v.explain(len(snap.Nodes)))
				}
				if err := cache.Assume(pod, v.node.Name()); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pods/s")
		})
	}
}

// BenchmarkVolumes decides for a pod with a claim that waits for a node, among 5,000 nodes: with 10,000 free volumes of
// its class, two on each node, and with room for a driver's volumes on each.
func BenchmarkVolumes(b *testing.B) {
	for name, class := range map[string]string{"static": "kubernetes.io/no-provisioner", "provisioned": "example.com/p"} {
		b.Run(name, func(b *testing.B) {
			objects := []runtime.Object{counting(), newClaim("data", "", "local"), newClass("local", class, storagev1.VolumeBindingWaitForFirstConsumer)}
			for i := range 5000 {
				node := fmt.Sprintf("node-%04d", i)
				objects = append(objects, schedulertest.Node(node, "32", "256Gi"), newCapacity(node, "local", "10Gi"))
				if name == "static" {
					objects = append(objects, newVolume(node+"-a", "", node), newVolume(node+"-b", "", node))
				}
			}
			cycle := cycleFor(schedulertest.Pod("p", schedulertest.Claim("data")), objects...)
			d := testDecider()
			b.ReportAllocs()
			for b.Loop() {
				if v := d.decide(cycle); v.node == nil {
					b.Fatal(v.explain(len(cycle.Snapshot.Nodes)))
				}
			}
		})
	}
}
