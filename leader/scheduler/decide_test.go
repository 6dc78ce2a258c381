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

	"github.com/balsahq/balsa/leader/scheduler/fixture"
	"github.com/balsahq/balsa/leader/scheduler/rules"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

func newDecider() *decider {
	return &decider{filters: rules.Filters(), scores: rules.Scores(), rand: rand.New(rand.NewPCG(1, 2))}
}

func cycleFor(pod *v1.Pod, objects ...runtime.Object) *rules.Cycle {
	cache, listers := fixture.Cluster(objects...)
	snap := snapshot.New()
	cache.Refresh(snap)
	return &rules.Cycle{Pod: fixture.Info(pod), Snapshot: snap, Listers: listers}
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

func newClass(name, provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	return &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
}

// TestRules has, for every filter, a case in which it decides: either the node that is left or the text a user reads.
func TestRules(t *testing.T) {
	zone := func(z string) func(*v1.Node) { return fixture.Label(v1.LabelTopologyZone, z) }
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
		{"an empty cluster", fixture.Pod("p"), nil, "no nodes available to schedule pods"},
		{"cordoned", fixture.Pod("p"), []runtime.Object{fixture.Node("a", "1", "1Gi", cordoned)},
			"0/1 nodes are available: 1 node(s) were unschedulable."},
		{"cordoned but tolerated", fixture.Pod("p", func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
		}), []runtime.Object{fixture.Node("a", "1", "1Gi", cordoned)}, "a"},
		{"taints", fixture.Pod("p"), []runtime.Object{
			fixture.Node("a", "1", "1Gi", fixture.Taint("x", v1.TaintEffectNoSchedule)),
			fixture.Node("b", "1", "1Gi", fixture.Taint("y", v1.TaintEffectNoExecute)),
		}, "0/2 nodes are available: 2 node(s) had untolerated taint(s)."},
		{"prefers the untainted", fixture.Pod("p"), []runtime.Object{
			fixture.Node("a", "1", "1Gi", fixture.Taint("x", v1.TaintEffectPreferNoSchedule)), fixture.Node("b", "1", "1Gi"),
		}, "b"},
		{"node selector", fixture.Pod("p", func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} }),
			[]runtime.Object{fixture.Node("a", "1", "1Gi"), fixture.Node("b", "1", "1Gi", fixture.Label("disk", "ssd"))}, "b"},
		{"node affinity", fixture.Pod("p", restrict("disk", v1.NodeSelectorOpIn, "ssd")),
			[]runtime.Object{fixture.Node("a", "1", "1Gi"), fixture.Node("b", "1", "1Gi")},
			"0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector."},
		{"pinned to a node", fixture.Pod("p", pinned("b")),
			[]runtime.Object{fixture.Node("a", "1", "1Gi"), fixture.Node("b", "1", "1Gi")}, "b"},
		{"pinned to a full node", fixture.Pod("p", pinned("b"), fixture.Requests("2", "1Mi")),
			[]runtime.Object{fixture.Node("a", "1", "1Gi"), fixture.Node("b", "1", "1Gi")},
			"0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't satisfy plugin(s) [NodeAffinity]."},
		{"host port", fixture.Pod("p", fixture.Port(80)), []runtime.Object{
			fixture.Node("a", "1", "1Gi"), fixture.Pod("q", fixture.Port(80), fixture.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't have free ports for the requested pod ports."},
		{"everything that lacks is told", fixture.Pod("p", fixture.Requests("2", "2Gi")), []runtime.Object{
			fixture.Node("a", "1", "1Gi", full), fixture.Node("b", "1", "8Gi"),
		}, "0/2 nodes are available: 1 Insufficient memory, 1 Too many pods, 2 Insufficient cpu."},
		{"extended resource", fixture.Pod("p", gpu("3")), []runtime.Object{fixture.Node("a", "1", "1Gi", gpus)},
			"0/1 nodes are available: 1 Insufficient example.com/gpu."},
		{"extended resource fits", fixture.Pod("p", gpu("2")), []runtime.Object{
			fixture.Node("a", "1", "1Gi", gpus), fixture.Node("b", "9", "9Gi")}, "a"},
		{"sidecars, init containers and overhead count", fixture.Pod("p", fixture.Requests("100m", "1Mi"), func(p *v1.Pod) {
			always := v1.ContainerRestartPolicyAlways
			p.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: &always, Resources: p.Spec.Containers[0].Resources}}
			p.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")}
		}), []runtime.Object{fixture.Node("a", "299m", "1Gi")}, "0/1 nodes are available: 1 Insufficient cpu."},
		{"spread over zones", fixture.Pod("p", fixture.Labelled("app", "w"), fixture.Spread("app", "w", v1.LabelTopologyZone, 1, v1.DoNotSchedule)),
			[]runtime.Object{
				fixture.Node("a", "8", "8Gi", zone("1")), fixture.Node("b", "1", "1Gi", zone("2")),
				fixture.Pod("q", fixture.Labelled("app", "w"), fixture.On("a")),
			}, "b"},
		{"spread impossible", fixture.Pod("p", fixture.Labelled("app", "w"), fixture.Spread("app", "w", v1.LabelTopologyZone, 1, v1.DoNotSchedule)),
			[]runtime.Object{
				fixture.Node("a", "8", "8Gi", zone("1")), fixture.Node("b", "10m", "1Gi", zone("2"), cordoned), fixture.Node("c", "1", "1Gi"),
				fixture.Pod("q", fixture.Labelled("app", "w"), fixture.On("a")),
			}, "0/3 nodes are available: 1 node(s) didn't match pod topology spread constraints, " +
				"1 node(s) didn't match pod topology spread constraints (missing required label), 1 node(s) were unschedulable."},
		{"pods of a service are spread", fixture.Pod("p", fixture.Labelled("app", "w")), []runtime.Object{
			fixture.Node("a", "8", "8Gi"), fixture.Node("b", "8", "8Gi"),
			fixture.Pod("q", fixture.Labelled("app", "w"), fixture.On("a")), fixture.Pod("r", fixture.On("b")),
			&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "s"}, Spec: v1.ServiceSpec{Selector: map[string]string{"app": "w"}}},
		}, "b"},
		{"near", fixture.Pod("p", fixture.Near("app", "db", v1.LabelHostname)), []runtime.Object{
			fixture.Node("a", "8", "8Gi"), fixture.Node("b", "1", "1Gi"), fixture.Pod("q", fixture.Labelled("app", "db"), fixture.On("b")),
		}, "b"},
		{"near nobody", fixture.Pod("p", fixture.Near("app", "db", v1.LabelHostname)), []runtime.Object{fixture.Node("a", "8", "8Gi")},
			"0/1 nodes are available: 1 node(s) didn't match pod affinity rules."},
		{"the first of its kind", fixture.Pod("p", fixture.Labelled("app", "db"), fixture.Near("app", "db", v1.LabelHostname)),
			[]runtime.Object{fixture.Node("a", "8", "8Gi")}, "a"},
		{"far", fixture.Pod("p", fixture.Far("app", "db", v1.LabelHostname)), []runtime.Object{
			fixture.Node("a", "8", "8Gi"), fixture.Pod("q", fixture.Labelled("app", "db"), fixture.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."},
		{"kept far by others", fixture.Pod("p", fixture.Labelled("app", "db")), []runtime.Object{
			fixture.Node("a", "8", "8Gi"), fixture.Pod("q", fixture.Far("app", "db", v1.LabelHostname), fixture.On("a")),
		}, "0/1 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules."},
		{"devices", fixture.Pod("p", func(p *v1.Pod) {
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new(string)}}
		}), []runtime.Object{fixture.Node("a", "8", "8Gi")},
			"0/1 nodes are available: pod has resourceClaims, and devices are not allocated in this cluster."},
		{"missing claim", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi")},
			`0/1 nodes are available: persistentvolumeclaim "data" not found.`},
		{"unbound claim", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi"),
			newClaim("data", "", "fast"), newClass("fast", "example.com/p", storagev1.VolumeBindingImmediate)},
			"0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."},
		{"volume elsewhere", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi"),
			newClaim("data", "v", "local"), newVolume("v", "data", "b")},
			"0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."},
		{"volume gone", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi"), newClaim("data", "v", "local")},
			"0/1 nodes are available: 1 node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)."},
		{"no volume to bind", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi"), newVolume("v", "", "b"),
			newClaim("data", "", "local"), newClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)},
			"0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."},
		{"goes to where a volume is free", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{
			fixture.Node("a", "8", "8Gi"), fixture.Node("b", "1", "1Gi"), newVolume("v", "", "b"),
			newClaim("data", "", "local"), newClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)}, "b"},
		{"volume zone", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi", zone("1")),
			newClaim("data", "v", "local"), func() *v1.PersistentVolume {
				pv := newVolume("v", "data", "a")
				pv.Labels = map[string]string{v1.LabelTopologyZone: "2__3"}
				return pv
			}()}, "0/1 nodes are available: 1 node(s) had no available volume zone."},
		{"exclusive claim", fixture.Pod("p", fixture.Claim("data")), []runtime.Object{fixture.Node("a", "8", "8Gi"), newVolume("v", "data", "a"),
			func() *v1.PersistentVolumeClaim {
				c := newClaim("data", "v", "local")
				c.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
				return c
			}(), fixture.Pod("q", fixture.Claim("data"), fixture.On("a"))},
			"0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod."},
		{"prefers the emptier", fixture.Pod("p"), []runtime.Object{fixture.Node("a", "4", "4Gi"), fixture.Node("b", "4", "4Gi"),
			fixture.Pod("q", fixture.Requests("3", "3Gi"), fixture.On("a"))}, "b"},
		{"prefers the node with a big image", fixture.Pod("p"), []runtime.Object{fixture.Node("a", "4", "4Gi"),
			fixture.Node("b", "4", "4Gi", func(n *v1.Node) {
				n.Status.Images = []v1.ContainerImage{{Names: []string{"registry.example/app:1"}, SizeBytes: 900 << 20}}
			})}, "b"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cycle := cycleFor(c.pod, c.objects...)
			v := newDecider().decide(cycle)
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
	half := fixture.Requests("2", "1Gi")
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
		{"one is enough, the less important goes", fixture.Pod("p", half, fixture.Priority(10)), []runtime.Object{
			fixture.Node("a", "4", "4Gi"), fixture.Pod("low", half, fixture.Priority(1), fixture.On("a")),
			fixture.Pod("mid", half, fixture.Priority(5), fixture.On("a")),
		}, nil, "a", "low", ""},
		{"a budget is spared", fixture.Pod("p", half, fixture.Priority(10)), []runtime.Object{
			fixture.Node("a", "2", "4Gi"), fixture.Node("b", "2", "4Gi"),
			fixture.Pod("kept", half, fixture.Priority(1), fixture.Labelled("keep", "yes"), fixture.On("a")),
			fixture.Pod("other", half, fixture.Priority(5), fixture.On("b")),
		}, []*policyv1.PodDisruptionBudget{protected}, "b", "other", ""},
		{"the youngest goes", fixture.Pod("p", half, fixture.Priority(10)), []runtime.Object{
			fixture.Node("a", "2", "4Gi"), fixture.Node("b", "2", "4Gi"),
			fixture.Pod("old", half, fixture.On("a"), started(1)), fixture.Pod("young", half, fixture.On("b"), started(9)),
		}, nil, "b", "young", ""},
		{"equals are safe", fixture.Pod("p", half), []runtime.Object{
			fixture.Node("a", "2", "4Gi"), fixture.Pod("q", half, fixture.On("a")),
		}, nil, "", "", "preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."},
		{"not where it can never fit", fixture.Pod("p", fixture.Requests("3", "1Gi"), fixture.Priority(9)), []runtime.Object{
			fixture.Node("a", "2", "4Gi"), fixture.Pod("q", half, fixture.On("a")),
		}, nil, "", "", "preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."},
		{"never means never", fixture.Pod("p", half, fixture.Priority(9), func(p *v1.Pod) {
			never := v1.PreemptNever
			p.Spec.PreemptionPolicy = &never
		}), []runtime.Object{fixture.Node("a", "2", "4Gi"), fixture.Pod("q", half, fixture.On("a"))}, nil, "", "",
			"preemption: not eligible due to preemptionPolicy=Never."},
		{"an unwelcoming pod goes", fixture.Pod("p", fixture.Labelled("app", "x"), fixture.Priority(9)), []runtime.Object{
			fixture.Node("a", "2", "4Gi"), fixture.Pod("q", fixture.Far("app", "x", v1.LabelHostname), fixture.On("a")),
		}, nil, "a", "q", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cycle, d := cycleFor(c.preempt, c.objects...), newDecider()
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
	half := fixture.Requests("2", "1Gi")
	cycle := cycleFor(fixture.Pod("p", half), fixture.Node("a", "2", "4Gi"))
	d := newDecider()
	d.nominated = func(string) []*snapshot.Pod {
		return []*snapshot.Pod{fixture.Info(fixture.Pod("vip", half, fixture.Priority(9)))}
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
		if got := candidates(n); got != want {
			t.Errorf("candidates(%d) = %d, want %d", n, got, want)
		}
	}
}

func TestSearchTakesTurnsOverNodes(t *testing.T) {
	var objects []runtime.Object
	for i := range 400 {
		objects = append(objects, fixture.Node(fmt.Sprintf("n%03d", i), "64", "64Gi"))
	}
	d, seen := newDecider(), map[string]bool{}
	cycle := cycleFor(fixture.Pod("p"), objects...)
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
