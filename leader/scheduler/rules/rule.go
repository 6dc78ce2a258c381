package rules

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/balsahq/balsa/leader/scheduler/devices"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// MaxScore is the best score that a rule gives a node, before its weight.
const MaxScore int64 = 100

// Listers are the sources from which rules read the objects that a pod refers to.
type Listers struct {
	Namespaces      corelisters.NamespaceLister
	Services        corelisters.ServiceLister
	Controllers     corelisters.ReplicationControllerLister
	ReplicaSets     appslisters.ReplicaSetLister
	StatefulSets    appslisters.StatefulSetLister
	Claims          corelisters.PersistentVolumeClaimLister
	Volumes         corelisters.PersistentVolumeLister
	StorageClasses  storagelisters.StorageClassLister
	CSINodes        storagelisters.CSINodeLister
	CSIDrivers      storagelisters.CSIDriverLister
	VolumeIndex     cache.Indexer // of Volumes; see IndexVolumes
	CapacityIndex   cache.Indexer // of CSIStorageCapacities; see IndexCapacities
	ReservedVolumes func(volume string) (claim string, reserved bool)
	Devices         *devices.Book
}

// Cycle is one attempt to place one pod.
type Cycle struct {
	Pod      *snapshot.Pod
	Snapshot *snapshot.Snapshot
	Listers  *Listers

	required   *nodeaffinity.RequiredNodeAffinity
	devices    *deviceCheck // nil: the pod has no claims
	namespaces map[string]labels.Set
}

// confined reports whether the pod has a node selector or required node affinity.
func (c *Cycle) confined() bool {
	spec := &c.Pod.Object.Spec
	return len(spec.NodeSelector) > 0 || requiredTerms(spec.Affinity) != nil
}

// Required returns the pod's node selector and required node affinity.
func (c *Cycle) Required() *nodeaffinity.RequiredNodeAffinity {
	if c.required == nil {
		r := nodeaffinity.GetRequiredNodeAffinity(c.Pod.Object)
		c.required = &r
	}
	return c.required
}

// NamespaceLabels returns the labels of a namespace; an unknown namespace has none.
func (c *Cycle) NamespaceLabels(name string) labels.Set {
	if set, ok := c.namespaces[name]; ok {
		return set
	}
	var set labels.Set
	if ns, err := c.Listers.Namespaces.Get(name); err == nil {
		set = ns.Labels
	}
	if c.namespaces == nil {
		c.namespaces = make(map[string]labels.Set)
	}
	c.namespaces[name] = set
	return set
}

// Refusal is why a pod may not go to a node.
type Refusal struct {
	Reasons []string
	// Final: removing pods from the node would not help.
	Final bool
	// Abort: something is wrong with the pod or what it names. It goes to no node, so that its user hears of it.
	Abort bool
}

func refuse(reason string) *Refusal { return &Refusal{Reasons: []string{reason}} }
func forbid(reason string) *Refusal { return &Refusal{Reasons: []string{reason}, Final: true} }
func abort(reason string) *Refusal {
	return &Refusal{Reasons: []string{reason}, Final: true, Abort: true}
}

// Check is a filter prepared for one pod.
type Check interface {
	// Admit returns nil when the pod may go to n.
	Admit(n *snapshot.Node) *Refusal
}

// Tracker is a Check that depends on pods of other nodes too. Preemption calls Change for each pod that it removes or puts back.
type Tracker interface {
	Check
	Change(p *snapshot.Pod, n *snapshot.Node, by int)
	Clone() Tracker
}

// Narrower is a Check that may know the names of all nodes that can pass it.
type Narrower interface {
	Check
	// Only returns the names of those nodes; false when the rule does not narrow.
	Only() ([]string, bool)
}

// Filter is a rule that admits or refuses nodes.
type Filter struct {
	Name string
	// Prepare returns nil, nil when the rule admits the pod on every node, and a Refusal when it refuses all nodes.
	Prepare func(c *Cycle) (Check, *Refusal)
	// Undo are the events that may make a refused pod schedulable.
	Undo []queue.Hint
}

// Scorer is a score prepared for one pod.
type Scorer interface {
	Score(n *snapshot.Node) int64
	// Normalize brings the raw scores of all candidates into 0…MaxScore.
	Normalize(nodes []*snapshot.Node, scores []int64)
}

// Score is a rule that compares nodes.
type Score struct {
	Name   string
	Weight int64
	// Prepare returns nil when the rule gives all candidates the same score.
	Prepare func(c *Cycle, candidates []*snapshot.Node) Scorer
}

// CheckFunc is a function as a Check.
type CheckFunc func(n *snapshot.Node) *Refusal

// Admit implements Check.
func (f CheckFunc) Admit(n *snapshot.Node) *Refusal { return f(n) }

// ScoreFunc is a Scorer whose scores are in 0…MaxScore already.
type ScoreFunc func(n *snapshot.Node) int64

// Score implements Scorer.
func (f ScoreFunc) Score(n *snapshot.Node) int64 { return f(n) }

// Normalize implements Scorer; it changes nothing.
func (ScoreFunc) Normalize([]*snapshot.Node, []int64) {}

// relative is a Scorer that scales the highest raw score to MaxScore, or, if reversed, to 0.
type relative struct {
	raw      func(n *snapshot.Node) int64
	reversed bool
}

func (r relative) Score(n *snapshot.Node) int64 { return r.raw(n) }

func (r relative) Normalize(_ []*snapshot.Node, scores []int64) {
	var highest int64
	for _, s := range scores {
		highest = max(highest, s)
	}
	for i, s := range scores {
		scaled := int64(0)
		if highest > 0 {
			scaled = MaxScore * s / highest
		}
		if r.reversed {
			scaled = MaxScore - scaled
		}
		scores[i] = scaled
	}
}

// Filters are the filters of the default profile, cheapest first.
func Filters() []Filter {
	return []Filter{
		Unschedulable, Taints, NodeAffinity, HostPorts, Fit, VolumeConflicts, VolumeLimits, VolumeBinding, VolumeZone,
		TopologySpread, PodAffinity, Devices,
	}
}

// Scores are the scores of the default profile.
func Scores() []Score {
	return []Score{
		PreferredTaints, PreferredNodes, LeastAllocated, TopologySpreadScore, PodAffinityScore, BalancedAllocation, ImageLocality,
		PreferredDevices,
	}
}

// Hints are the events that may undo the refusal of each filter, in any of the profiles.
func Hints(profiles ...[]Filter) map[string][]queue.Hint {
	hints := map[string][]queue.Hint{}
	for _, filters := range profiles {
		for _, f := range filters {
			hints[f.Name] = append(hints[f.Name], f.Undo...)
		}
	}
	return hints
}

// nodeOf and podOf return the object of an Event, nil when it is of another type.

func nodeOf(x any) *v1.Node { n, _ := x.(*v1.Node); return n }
func podOf(x any) *v1.Pod   { p, _ := x.(*v1.Pod); return p }
