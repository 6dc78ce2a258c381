package queue

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

// Nominator holds the pods for which preemption makes room, by node. It is safe for concurrent use.
type Nominator struct {
	mu   sync.Mutex
	pods map[string][]*snapshot.Pod
	node map[types.UID]string
}

// NewNominator returns an empty Nominator.
func NewNominator() *Nominator {
	return &Nominator{pods: make(map[string][]*snapshot.Pod), node: make(map[types.UID]string)}
}

// Set records that pod is nominated for node; the empty name removes the nomination.
func (n *Nominator) Set(pod *snapshot.Pod, node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear(pod.Object.UID)
	if node == "" {
		return
	}
	n.node[pod.Object.UID] = node
	n.pods[node] = append(n.pods[node], pod)
}

// Clear removes the pod's nomination.
func (n *Nominator) Clear(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.clear(uid)
}

func (n *Nominator) clear(uid types.UID) {
	node, ok := n.node[uid]
	if !ok {
		return
	}
	delete(n.node, uid)
	// A new slice: callers of On may still read the old one.
	rest := slices.DeleteFunc(slices.Clone(n.pods[node]), func(p *snapshot.Pod) bool { return p.Object.UID == uid })
	if len(rest) == 0 {
		delete(n.pods, node)
		return
	}
	n.pods[node] = rest
}

// Node returns the node that the pod is nominated for, or "".
func (n *Nominator) Node(uid types.UID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.node[uid]
}

// On returns the pods nominated for node; the result must not be changed.
func (n *Nominator) On(node string) []*snapshot.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clip(n.pods[node])
}

// Empty reports whether no pod is nominated.
func (n *Nominator) Empty() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.node) == 0
}
