package garbage

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// identity names an object. Kind and group come from an owner reference, for an object that no watch has shown yet.
type identity struct {
	group, kind     string
	namespace, name string
	uid             types.UID
}

// node is one object: seen in a watch, or known only as the owner of another.
type node struct {
	identity
	resource   schema.GroupVersionResource // of a seen object
	seen       bool
	deleting   bool
	foreground bool // carries the finalizer foregroundDeletion
	orphan     bool // carries the finalizer orphan
	owners     []metav1.OwnerReference
	dependents map[types.UID]*node
}

// waiting reports whether the object is being deleted and waits for its dependents to go first.
func (n *node) waiting() bool { return n.deleting && n.foreground }

// graph has the owner and dependents of each object. Safe for concurrent use.
type graph struct {
	mu    sync.Mutex
	nodes map[types.UID]*node
	// gone holds the UIDs that were seen deleted, and the identities of which the API has said that no object of that name has that
	// UID. Neither can become untrue: UIDs are never used twice, and no object is renamed.
	gone *lru.Cache
}

func newGraph() *graph {
	return &graph{nodes: map[types.UID]*node{}, gone: lru.New(4096)}
}

// observe takes in a version of an object and returns the UIDs that have to be reconciled because of it.
func (g *graph) observe(r resource, obj metav1.Object) []types.UID {
	g.mu.Lock()
	defer g.mu.Unlock()
	uid := obj.GetUID()
	n := g.nodes[uid]
	if n == nil {
		n = &node{}
		g.nodes[uid] = n
	}
	before := *n
	n.identity = identity{group: r.gvr.Group, kind: r.kind, namespace: obj.GetNamespace(), name: obj.GetName(), uid: uid}
	n.resource, n.seen = r.gvr, true
	n.deleting = obj.GetDeletionTimestamp() != nil
	n.foreground = slices.Contains(obj.GetFinalizers(), metav1.FinalizerDeleteDependents)
	n.orphan = slices.Contains(obj.GetFinalizers(), metav1.FinalizerOrphanDependents)
	n.owners = compact(obj.GetOwnerReferences())

	look := g.relink(n, before.owners)
	switch {
	case n.deleting && n.orphan && !(before.deleting && before.orphan):
		look = append(look, uid)
	case n.waiting() && !before.waiting():
		look = append(look, uid)
		for d := range n.dependents {
			look = append(look, d)
		}
	}
	if !before.seen && before.uid != "" { // was known as an owner only, perhaps by another name
		for d, dependent := range n.dependents {
			if !refersTo(dependent, n) {
				look = append(look, d)
			}
		}
	}
	return look
}

// compact copies the references without keeping the object they came from alive.
func compact(refs []metav1.OwnerReference) []metav1.OwnerReference {
	if len(refs) == 0 {
		return nil
	}
	return slices.Clone(refs)
}

// relink makes n a dependent of its present owners only.
func (g *graph) relink(n *node, before []metav1.OwnerReference) (look []types.UID) {
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			owner = &node{identity: identity{group: groupOf(ref.APIVersion), kind: ref.Kind, namespace: n.namespace, name: ref.Name, uid: ref.UID}}
			g.nodes[ref.UID] = owner
		}
		if owner.dependents == nil {
			owner.dependents = map[types.UID]*node{}
		}
		_, known := owner.dependents[n.uid]
		owner.dependents[n.uid] = n
		switch {
		case known:
		case !owner.seen:
			look = append(look, owner.uid) // does it exist at all?
		case owner.waiting() || !refersTo(n, owner):
			look = append(look, n.uid)
		}
	}
	for _, ref := range before {
		now := slices.IndexFunc(n.owners, func(o metav1.OwnerReference) bool { return o.UID == ref.UID })
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		if now < 0 {
			delete(owner.dependents, n.uid)
			g.sweep(owner)
		}
		unblocked := blocks(ref) && (now < 0 || !blocks(n.owners[now]))
		if unblocked && owner.waiting() {
			look = append(look, owner.uid)
		}
	}
	return look
}

// sweep drops an owner that no watch has shown and that has no dependents any more.
func (g *graph) sweep(n *node) {
	if !n.seen && len(n.dependents) == 0 {
		delete(g.nodes, n.uid)
	}
}

// remove removes an object that is deleted and returns the UIDs that have to be reconciled because of it.
func (g *graph) remove(uid types.UID) (look []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone.Add(uid, true)
	n := g.nodes[uid]
	if n == nil {
		return nil
	}
	delete(g.nodes, uid)
	for d := range n.dependents {
		look = append(look, d)
	}
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil {
			continue
		}
		delete(owner.dependents, uid)
		if owner.waiting() {
			look = append(look, owner.uid)
		}
		g.sweep(owner)
	}
	return look
}

// replace takes in a complete list of one resource; what is not in it is gone.
func (g *graph) replace(r resource, objs []metav1.Object) (look []types.UID) {
	present := make(map[types.UID]bool, len(objs))
	for _, o := range objs {
		present[o.GetUID()] = true
		look = append(look, g.observe(r, o)...)
	}
	for _, uid := range g.of(r.gvr) {
		if !present[uid] {
			look = append(look, g.remove(uid)...)
		}
	}
	return look
}

// forget handles a resource that discovery no longer names. That says nothing about its objects, which may only be out of
// reach: those that own something are kept as not seen, so that nothing is deleted on their account.
func (g *graph) forget(gvr schema.GroupVersionResource) {
	uids := g.of(gvr)
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, uid := range uids {
		n := g.nodes[uid]
		if n == nil {
			continue
		}
		for _, ref := range n.owners {
			if owner := g.nodes[ref.UID]; owner != nil {
				delete(owner.dependents, uid)
				g.sweep(owner)
			}
		}
		n.owners, n.seen = nil, false
		g.sweep(n)
	}
}

func (g *graph) of(gvr schema.GroupVersionResource) (uids []types.UID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, n := range g.nodes {
		if n.seen && n.resource == gvr {
			uids = append(uids, uid)
		}
	}
	return uids
}

// absent records that the API denied an identity.
func (g *graph) absent(id identity) { g.gone.Add(id, true) }

// isGone reports whether the object was seen to be deleted, or denied by the API.
func (g *graph) isGone(id identity) bool {
	if _, ok := g.gone.Get(id.uid); ok {
		return true
	}
	_, ok := g.gone.Get(id)
	return ok
}

// view is a copy of a node and of what a decision needs to know of its neighbours.
type view struct {
	node
	ownersNow  []*node // copies, in the order of owners; nil where the graph has not seen the owner as described
	dependents []node  // copies
}

func (g *graph) view(uid types.UID) (view, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := g.nodes[uid]
	if n == nil {
		return view{}, false
	}
	v := view{node: *n}
	v.node.dependents = nil
	for _, ref := range n.owners {
		owner := g.nodes[ref.UID]
		if owner == nil || !owner.seen || !describes(ref, n, owner) {
			v.ownersNow = append(v.ownersNow, nil)
			continue
		}
		o := *owner
		o.dependents = nil
		v.ownersNow = append(v.ownersNow, &o)
	}
	for _, d := range n.dependents {
		c := *d
		c.dependents = nil
		v.dependents = append(v.dependents, c)
	}
	return v, true
}

// refersTo reports whether one of n's references names owner as it really is.
func refersTo(n, owner *node) bool {
	for _, ref := range n.owners {
		if ref.UID == owner.uid {
			return describes(ref, n, owner)
		}
	}
	return false
}

// describes reports whether ref, found on dependent, fits owner's kind, name and namespace.
func describes(ref metav1.OwnerReference, dependent, owner *node) bool {
	return ref.Kind == owner.kind && groupOf(ref.APIVersion) == owner.group && ref.Name == owner.name &&
		(owner.namespace == "" || owner.namespace == dependent.namespace)
}

func groupOf(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return apiVersion
	}
	return gv.Group
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

func blockedBy(dependent *node, owner types.UID) bool {
	for _, ref := range dependent.owners {
		if ref.UID == owner {
			return blocks(ref)
		}
	}
	return false
}
