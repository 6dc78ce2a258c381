package scheduler

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/schedulertest"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

func testDecider() *decider {
	return newDecider(profile.Default().Profiles[0], rand.New(rand.NewPCG(1, 2)))
}

func cycleFor(pod *v1.Pod, objects ...runtime.Object) *rules.Cycle {
	cache, listers := schedulertest.Cluster(objects...)
	snap := snapshot.New()
	cache.Refresh(snap)
	return &rules.Cycle{Pod: schedulertest.Info(pod), Snapshot: snap, Listers: listers}
}

func restrict(key string, op v1.NodeSelectorOperator, values ...string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: key, Operator: op, Values: values}},
			}}},
		}}
	}
}

func pinned(node string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchFields: []v1.NodeSelectorRequirement{{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}},
		}}
	}
}

func newVolume(name, claim, node string) *v1.PersistentVolume {
	pv := &v1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PersistentVolumeSpec{
			Capacity:         v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
			StorageClassName: "local", AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			NodeAffinity: &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
				MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelHostname, Operator: v1.NodeSelectorOpIn, Values: []string{node}}},
			}}}},
		},
		Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
	}
	if claim != "" {
		pv.Spec.ClaimRef = &v1.ObjectReference{Namespace: "default", Name: claim}
	}
	return pv
}

func newClaim(name, volume, class string) *v1.PersistentVolumeClaim {
	c := &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{}},
		Spec: v1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeName: volume, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}},
		},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimPending},
	}
	if volume != "" {
		c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		c.Status.Phase = v1.ClaimBound
	}
	return c
}

// counting is a driver that publishes how much room it has.
func counting() *storagev1.CSIDriver {
	yes := true
	return &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "example.com/p"}, Spec: storagev1.CSIDriverSpec{StorageCapacity: &yes}}
}

// newCapacity is the room for a class on a node.
func newCapacity(node, class, size string) *storagev1.CSIStorageCapacity {
	q := resource.MustParse(size)
	return &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: class + "-" + node}, StorageClassName: class, Capacity: &q,
		NodeTopology: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelHostname: node}}}
}

func newClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// TestRules has, for every filter, a case in which it decides: either the node that is left or the text a user reads.
func TestRules(t *testing.T) {
	zone := func(z string) func(*v1.Node) { return schedulertest.Label(v1.LabelTopologyZone, z) }
	cordoned := func(n *v1.Node) { n.Spec.Unschedulable = true }
	gpus := func(n *v1.Node) { n.Status.Allocatable["example.com/gpu"] = resource.MustParse("2") }
	gpu := func(count string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Containers[0].Resources.Requests = v1.ResourceList{"example.com/gpu": resource.MustParse(count)}
		}
	}
	full := func(n *v1.Node) { n.Status.Allocatable[v1.ResourcePods] = resource.MustParse("0") }
	cases := []struct {
		name    string
		pod     *v1.Pod
		objects []runtime.Object
		want    string // a node, or the text
	}{
		{"an empty cluster", schedulertest.Pod("p"), nil, "no nodes available to schedule pods"},
		{"cordoned", schedulertest.Pod("p"), []runtime.Object{schedulertest.Node("a", "1", "1Gi", cordoned)},
			"0/1 nodes are available: 1 node(s) were unschedulable."},
		{"cordoned but tolerated", schedulertest.Pod("p", func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		}), []runtime.Object{schedulertest.Node("a", "1", "1Gi", cordoned)}, "a"},
		{"taints", schedulertest.Pod("p"), []runtime.Object{
			schedulertest.Node("a", "1", "1Gi", schedulertest.Taint("x", v1.TaintEffectNoSchedule)),
			schedulertest.Node("b", "1", "1Gi", schedulertest.Taint("y", v1.TaintEffectNoExecute)),
		}, "0/2 nodes are available: 2 node(s) had untolerated taint(s)."},
		{"prefers the untainted", schedulertest.Pod("p"), []runtime.Object{
			schedulertest.Node("a", "1", "1Gi", schedulertest.Taint("x", v1.TaintEffectPreferNoSchedule)), schedulertest.Node("b", "1", "1Gi"),
		}, "b"},
		{"node selector", schedulertest.Pod("p", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			[]runtime.Object{schedulertest.Node("a", "1", "1Gi"), schedulertest.Node("b", "1", "1Gi", schedulertest.Label("disk", "ssd"))}, "b"},
		{"node affinity", schedulertest.Pod("p", restrict("disk", v1.NodeSelectorOpIn, "ssd")),
			[]runtime.Object{schedulertest.Node("a", "1", "1Gi"), schedulertest.Node("b", "1", "1Gi")},
			"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."},
		{"pinned to a node", schedulertest.Pod("p", pinned("b")),
			[]runtime.Object{schedulertest.Node("a", "1", "1Gi"), schedulertest.Node("b", "1", "1Gi")}, "b"},
		{"pinned to a full node", schedulertest.Pod("p", pinned("b"), schedulertest.Requests("2", "1Mi")),
			[]runtime.Object{schedulertest.Node("a", "1", "1Gi"), schedulertest.Node("b", "1", "1Gi")},
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		{"host port", schedulertest.Pod("p", schedulertest.Port(80)), []runtime.Object{
			schedulertest.Node("a", "1", "1Gi"), schedulertest.Pod("q", schedulertest.Port(80), schedulertest.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"everything that lacks is told", schedulertest.Pod("p", schedulertest.Requests("2", "2Gi")), []runtime.Object{
			schedulertest.Node("a", "1", "1Gi", full), schedulertest.Node("b", "1", "8Gi"),
		}, "0/2 nodes are available: 1 Insufficient memory, 1 Too many pods, 2 Insufficient cpu."},
		{"extended resource", schedulertest.Pod("p", gpu("3")), []runtime.Object{schedulertest.Node("a", "1", "1Gi", gpus)},
			"0/1 nodes are available: 1 Insufficient example.com/gpu."},
		{"extended resource fits", schedulertest.Pod("p", gpu("2")), []runtime.Object{
			schedulertest.Node("a", "1", "1Gi", gpus), schedulertest.Node("b", "9", "9Gi")}, "a"},
		{"sidecars, init containers and overhead count", schedulertest.Pod("p", schedulertest.Requests("100m", "1Mi"), func(p *v1.Pod) {
			always := v1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: &always, Resources: p.Spec.Containers[0].Resources}}
			p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
		}), []runtime.Object{schedulertest.Node("a", "299m", "1Gi")}, "0/1 nodes are available: 1 Insufficient cpu."},
		{"spread over zones", schedulertest.Pod("p", schedulertest.Labelled("app", "w"), schedulertest.Spread("app", "w", v1.LabelTopologyZone, 1, v1.DoNotSchedule)),
			[]runtime.Object{
				schedulertest.Node("a", "8", "8Gi", zone("1")), schedulertest.Node("b", "1", "1Gi", zone("2")),
				schedulertest.Pod("q", schedulertest.Labelled("app", "w"), schedulertest.On("a")),
			}, "b"},
		{"spread impossible", schedulertest.Pod("p", schedulertest.Labelled("app", "w"), schedulertest.Spread("app", "w", v1.LabelTopologyZone, 1, v1.DoNotSchedule)),
			[]runtime.Object{
				schedulertest.Node("a", "8", "8Gi", zone("1")), schedulertest.Node("b", "10m", "1Gi", zone("2"), cordoned), schedulertest.Node("c", "1", "1Gi"),
				schedulertest.Pod("q", schedulertest.Labelled("app", "w"), schedulertest.On("a")),
			}, "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, " +
				"1 node(s) didn't match pod topology spread constraints (missing required label), 1 node(s) were unschedulable."},
		{"pods of a service are spread", schedulertest.Pod("p", schedulertest.Labelled("app", "w")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "8", "8Gi"),
			schedulertest.Pod("q", schedulertest.Labelled("app", "w"), schedulertest.On("a")), schedulertest.Pod("r", schedulertest.On("b")),
			&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": "w"}}},
		}, "b"},
		{"near", schedulertest.Pod("p", schedulertest.Near("app", "db", v1.LabelHostname)), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "1", "1Gi"), schedulertest.Pod("q", schedulertest.Labelled("app", "db"), schedulertest.On("b")),
		}, "b"},
		{"near nobody", schedulertest.Pod("p", schedulertest.Near("app", "db", v1.LabelHostname)), []runtime.Object{schedulertest.Node("a", "8", "8Gi")},
			"0/1 nodes are available: 1 node(s) didn't match pod affinity rules."},
		{"the first of its kind", schedulertest.Pod("p", schedulertest.Labelled("app", "db"), schedulertest.Near("app", "db", v1.LabelHostname)),
			[]runtime.Object{schedulertest.Node("a", "8", "8Gi")}, "a"},
		{"far", schedulertest.Pod("p", schedulertest.Far("app", "db", v1.LabelHostname)), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Pod("q", schedulertest.Labelled("app", "db"), schedulertest.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{"kept far by others", schedulertest.Pod("p", schedulertest.Labelled("app", "db")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Pod("q", schedulertest.Far("app", "db", v1.LabelHostname), schedulertest.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{"missing claim", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi")},
			`0/1 nodes are available: persistentvolumeclaim "data" not found.`},
		{"unbound claim", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi"),
			newClaim("data", "", "fast"), newClass("fast", "example.com/p", storagev1.VolumeBindingImmediate)},
			"0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"volume elsewhere", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi"),
			newClaim("data", "v", "local"), newVolume("v", "data", "b")},
			"0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."},
		{"volume gone", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi"), newClaim("data", "v", "local")},
			"0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."},
		{"no volume to bind", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi"), newVolume("v", "", "b"),
			newClaim("data", "", "local"), newClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)},
			"0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."},
		{"goes to where a volume is free", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "1", "1Gi"), newVolume("v", "", "b"),
			newClaim("data", "", "local"), newClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)}, "b"},
		{"goes to where there is room", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "1", "1Gi"), newClaim("data", "", "disk"), counting(),
			newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer), newCapacity("a", "disk", "500Mi"), newCapacity("b", "disk", "2Gi")}, "b"},
		{"the largest volume counts", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), newClaim("data", "", "disk"), counting(), newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer),
			func() *storagev1.CSIStorageCapacity {
				c := newCapacity("a", "disk", "2Gi")
				most := resource.MustParse("500Mi")
				c.MaximumVolumeSize = &most
				return c
			}()}, "0/1 nodes are available: 1 node(s) did not have enough free storage."},
		{"room of another class", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), newClaim("data", "", "disk"), counting(), newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer),
			newCapacity("a", "other", "2Gi")}, "0/1 nodes are available: 1 node(s) did not have enough free storage."},
		{"room by a selector", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), newClaim("data", "", "disk"), counting(), newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer),
			func() *storagev1.CSIStorageCapacity {
				c := newCapacity("", "disk", "2Gi")
				c.NodeTopology = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1.LabelHostname, Operator: metav1.LabelSelectorOpExists}}}
				return c
			}()}, "a"},
		{"a driver that does not count", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), newClaim("data", "", "disk"), newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer)}, "a"},
		{"under way on a full node", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{
			schedulertest.Node("a", "8", "8Gi"), schedulertest.Node("b", "8", "8Gi"), counting(), newClass("disk", "example.com/p", storagev1.VolumeBindingWaitForFirstConsumer),
			newCapacity("a", "disk", "0"), newCapacity("b", "disk", "5Gi"),
			func() *v1.PersistentVolumeClaim {
				c := newClaim("data", "", "disk")
				c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": "a"}
				return c
			}()}, "a"},
		{"volume zone", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi", zone("1")),
			newClaim("data", "v", "local"), func() *v1.PersistentVolume {
				pv := newVolume("v", "data", "a")
				pv.Labels = map[string]string{v1.LabelTopologyZone: "2__3"}
				return pv
			}()}, "0/1 nodes are available: 1 node(s) had no available volume zone."},
		{"exclusive claim", schedulertest.Pod("p", schedulertest.Claim("data")), []runtime.Object{schedulertest.Node("a", "8", "8Gi"), newVolume("v", "data", "a"),
			func() *v1.PersistentVolumeClaim {
				c := newClaim("data", "v", "local")
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
				return c
			}(), schedulertest.Pod("q", schedulertest.Claim("data"), schedulertest.On("a"))},
			"0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod."},
		{"prefers the emptier", schedulertest.Pod("p"), []runtime.Object{schedulertest.Node("a", "4", "4Gi"), schedulertest.Node("b", "4", "4Gi"),
			schedulertest.Pod("q", schedulertest.Requests("3", "3Gi"), schedulertest.On("a"))}, "b"},
		{"prefers the node with a big image", schedulertest.Pod("p"), []runtime.Object{schedulertest.Node("a", "4", "4Gi"),
			schedulertest.Node("b", "4", "4Gi", func(n *v1.Node) {
				n.Status.Images = []v1.ContainerImage{{Names: []string{"registry.example/app:1"}, SizeBytes: 900 << 20}}
			})}, "b"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cycle := cycleFor(c.pod, c.objects...)
			v := testDecider().decide(cycle)
			got := ""
			if v.node != nil {
				got = v.node.Name()
			} else {
				got = v.explain(len(cycle.Snapshot.Nodes))
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestPreemptionTakesTheLeastHarmfulVictims(t *testing.T) {
	started := func(minute int) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(int64(minute)*60, 0)} }
	}
	half := schedulertest.Requests("2", "1Gi")
	protected := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"keep": "yes"}}}}
	cases := []struct {
		name    string
		preempt *v1.Pod
		objects []runtime.Object
		budgets []*policyv1.PodDisruptionBudget
		node    string
		victims string
		message string
	}{
		{"one is enough, the less important goes", schedulertest.Pod("p", half, schedulertest.Priority(10)), []runtime.Object{
			schedulertest.Node("a", "4", "4Gi"), schedulertest.Pod("low", half, schedulertest.Priority(1), schedulertest.On("a")),
			schedulertest.Pod("mid", half, schedulertest.Priority(5), schedulertest.On("a")),
		}, nil, "a", "low", ""},
		{"a budget is spared", schedulertest.Pod("p", half, schedulertest.Priority(10)), []runtime.Object{
			schedulertest.Node("a", "2", "4Gi"), schedulertest.Node("b", "2", "4Gi"),
			schedulertest.Pod("kept", half, schedulertest.Priority(1), schedulertest.Labelled("keep", "yes"), schedulertest.On("a")),
			schedulertest.Pod("other", half, schedulertest.Priority(5), schedulertest.On("b")),
		}, []*policyv1.PodDisruptionBudget{protected}, "b", "other", ""},
		{"the youngest goes", schedulertest.Pod("p", half, schedulertest.Priority(10)), []runtime.Object{
			schedulertest.Node("a", "2", "4Gi"), schedulertest.Node("b", "2", "4Gi"),
			schedulertest.Pod("old", half, schedulertest.On("a"), started(1)), schedulertest.Pod("young", half, schedulertest.On("b"), started(9)),
		}, nil, "b", "young", ""},
		{"equals are safe", schedulertest.Pod("p", half), []runtime.Object{
			schedulertest.Node("a", "2", "4Gi"), schedulertest.Pod("q", half, schedulertest.On("a")),
		}, nil, "", "", "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		{"not where it can never fit", schedulertest.Pod("p", schedulertest.Requests("3", "1Gi"), schedulertest.Priority(9)), []runtime.Object{
			schedulertest.Node("a", "2", "4Gi"), schedulertest.Pod("q", half, schedulertest.On("a")),
		}, nil, "", "", "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		{"never means never", schedulertest.Pod("p", half, schedulertest.Priority(9), func(p *v1.Pod) {
			never := v1.PreemptNever
			p.Spec.PreemptionPolicy = &never
		}), []runtime.Object{schedulertest.Node("a", "2", "4Gi"), schedulertest.Pod("q", half, schedulertest.On("a"))}, nil, "", "",
			"preemption: not eligible due to preemptionPolicy=Never."},
		{"an unwelcoming pod goes", schedulertest.Pod("p", schedulertest.Labelled("app", "x"), schedulertest.Priority(9)), []runtime.Object{
			schedulertest.Node("a", "2", "4Gi"), schedulertest.Pod("q", schedulertest.Far("app", "x", v1.LabelHostname), schedulertest.On("a")),
		}, nil, "a", "q", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cycle, d := cycleFor(c.preempt, c.objects...), testDecider()
			v := d.decide(cycle)
			if v.node != nil {
				t.Fatalf("the pod fits on %s without preemption", v.node.Name())
			}
			p := d.preempt(cycle, v, c.budgets, "")
			if p.message != c.message {
				t.Errorf("message %q, want %q", p.message, c.message)
			}
			var node string
			var victims []string
			if p.eviction != nil {
				node = p.eviction.node.Name()
				for _, victim := range p.eviction.victims {
					victims = append(victims, victim.Object.Name)
				}
			}
			if got := strings.Join(victims, ","); node != c.node || got != c.victims {
				t.Errorf("evicts %q from %q, want %q from %q", got, node, c.victims, c.node)
			}
		})
	}
}

func TestNominatedPodsHoldTheirRoom(t *testing.T) {
	half := schedulertest.Requests("2", "1Gi")
	cycle := cycleFor(schedulertest.Pod("p", half), schedulertest.Node("a", "2", "4Gi"))
	d := testDecider()
	d.nominated = func(string) []*snapshot.Pod {
		return []*snapshot.Pod{schedulertest.Info(schedulertest.Pod("vip", half, schedulertest.Priority(9)))}
	}
	if v := d.decide(cycle); v.node != nil {
		t.Error("took the room of a more important nominated pod")
	}
	if n := cycle.Snapshot.Node("a"); len(n.Pods) != 0 {
		t.Error("a nominated pod was left on the snapshot's node")
	}
}

func TestCandidatesShrinkWithTheCluster(t *testing.T) {
	for n, want := range map[int]int{1: 1, 99: 99, 100: 100, 250: 120, 1000: 420, 5000: 500, 20000: 1000} {
		if got := candidates(n, 0); got != want {
			t.Errorf("candidates(%d, 0) = %d, want %d", n, got, want)
		}
	}
}

func TestSearchTakesTurnsOverNodes(t *testing.T) {
	var objects []runtime.Object
	for i := range 400 {
		objects = append(objects, schedulertest.Node(fmt.Sprintf("n%03d", i), "64", "64Gi"))
	}
	d, seen := testDecider(), map[string]bool{}
	cycle := cycleFor(schedulertest.Pod("p"), objects...)
	for range 4 {
		d.decide(cycle)
		for _, n := range d.nodes {
			seen[n.Name()] = true
		}
	}
	if len(seen) != 400 {
		t.Errorf("four searches saw %d of 400 nodes", len(seen))
	}
}
