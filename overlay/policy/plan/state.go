package plan

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// State is everything that is known, and what follows from it.
type State struct {
	policies map[string]map[string]*Policy // by namespace and name
	spaces   map[string]map[string]string  // namespaces' labels
	pods     map[PodKey]*Pod
	local    map[PodKey]*Pod
	owners   map[netip.Addr]*Pod
	rivals   map[netip.Addr][]*Pod // pods that have an address somebody else owns
	told     map[types.UID]*told
	// homeless are pods of this node that were there before us and of which we do not know where they are.
	homeless map[types.UID]struct{}

	layout *layout
	stale  bool // the layout is not what follows from the rest
	groups map[string]*members
	kernel baseline
}

// told is what whoever attached a pod said.
type told struct {
	addresses []netip.Addr
	seen      bool // the API has shown that pod
}

// NewState returns a State that knows nothing.
func NewState() *State {
	s := &State{policies: map[string]map[string]*Policy{}}
	s.Forget()
	s.ForgetPods()
	return s
}

// ForgetPods forgets pods and namespaces, and with them what followed.
func (s *State) ForgetPods() {
	s.spaces, s.pods, s.local = map[string]map[string]string{}, map[PodKey]*Pod{}, map[PodKey]*Pod{}
	s.owners, s.rivals = map[netip.Addr]*Pod{}, map[netip.Addr][]*Pod{}
	s.told, s.homeless = map[types.UID]*told{}, map[types.UID]struct{}{}
	s.layout, s.groups, s.stale = newLayout(), map[string]*members{}, true
	s.Forget()
}

// SetPolicy takes in a policy.
func (s *State) SetPolicy(p *Policy) {
	if s.policies[p.Namespace] == nil {
		s.policies[p.Namespace] = map[string]*Policy{}
	}
	s.policies[p.Namespace][p.Name] = p
	s.stale = true
}

// DeletePolicy forgets a policy.
func (s *State) DeletePolicy(namespace, name string) {
	delete(s.policies[namespace], name)
	if len(s.policies[namespace]) == 0 {
		delete(s.policies, namespace)
	}
	s.stale = true
}

// ReplacePolicies forgets all policies but these.
func (s *State) ReplacePolicies(list []*Policy) {
	s.policies, s.stale = map[string]map[string]*Policy{}, true
	for _, p := range list {
		s.SetPolicy(p)
	}
}

// Policy is a policy by its name; nil: there is none.
func (s *State) Policy(namespace, name string) *Policy { return s.policies[namespace][name] }

// Policies tells whether there are any.
func (s *State) Policies() bool { return len(s.policies) > 0 }

// SetNamespace takes in a namespace's labels; it reports whether that changes anything.
func (s *State) SetNamespace(name string, labels map[string]string) bool {
	if old, known := s.spaces[name]; known && maps.Equal(old, labels) {
		return false
	}
	s.changeNamespace(name, func() { s.spaces[name] = labels })
	return true
}

// DeleteNamespace forgets a namespace.
func (s *State) DeleteNamespace(name string) bool {
	if _, known := s.spaces[name]; !known {
		return false
	}
	s.changeNamespace(name, func() { delete(s.spaces, name) })
	return true
}

// Namespaces are the names of those known.
func (s *State) Namespaces() []string { return slices.Collect(maps.Keys(s.spaces)) }

func (s *State) changeNamespace(name string, change func()) {
	var list []*Pod
	for _, p := range s.pods {
		if p.Namespace == name {
			list = append(list, p)
		}
	}
	for _, p := range list {
		s.eachOwned(p, s.leave)
	}
	change()
	for _, p := range list {
		s.eachOwned(p, s.enter)
	}
}

// SetPod takes in a pod as the API has it; it reports whether that changes anything.
func (s *State) SetPod(p Pod) bool {
	if t := s.told[p.UID]; t != nil && p.Local {
		t.seen, p.told, p.Addresses = true, true, t.addresses
	}
	if old := s.pods[p.PodKey]; old != nil && old.UID != p.UID && p.Created <= old.Created {
		if t := s.told[old.UID]; t != nil && !t.seen {
			return false // the API is behind: it still shows the pod that had the name before
		}
	}
	return s.setPod(&p)
}

// Tell takes in where a pod of this node is, from whoever attached it; the API may show it later. It reports whether that
// changes anything.
func (s *State) Tell(p Pod) bool {
	p.Local, p.told = true, true
	before := s.told[p.UID]
	if known := s.pods[p.PodKey]; known != nil && known.UID == p.UID {
		p.Labels, p.Ports = known.Labels, known.Ports // as new or newer
	}
	if before != nil && slices.Equal(before.addresses, p.Addresses) {
		return false
	}
	for _, a := range p.Addresses {
		s.evict(a, p.UID)
	}
	t := &told{addresses: p.Addresses}
	if before != nil {
		t.seen = before.seen
	} else if known := s.pods[p.PodKey]; known != nil && known.UID == p.UID {
		t.seen = true
	}
	s.told[p.UID] = t
	s.setPod(&p)
	return true
}

// evict forgets the pod that was said to be at an address before: what is not in the API any more ends here.
func (s *State) evict(a netip.Addr, but types.UID) {
	p := s.owners[a]
	if p == nil || p.UID == but || !p.told {
		return
	}
	if t := s.told[p.UID]; t != nil && !t.seen {
		s.DeletePod(p.PodKey, p.UID)
	}
}

// DeletePod forgets a pod; uid "" means whichever has the name.
func (s *State) DeletePod(key PodKey, uid types.UID) bool {
	p := s.pods[key]
	if p == nil || uid != "" && p.UID != uid {
		delete(s.told, uid)
		return false
	}
	delete(s.told, p.UID)
	delete(s.homeless, p.UID)
	s.eachClaim(p, s.disown)
	delete(s.pods, key)
	if p.Local {
		delete(s.local, key)
		s.stale = true
	}
	return true
}

// ReplacePods forgets all pods but these, and those that were just attached and that the API has not shown yet.
func (s *State) ReplacePods(list []Pod) {
	keep := make(map[PodKey]types.UID, len(list))
	for i := range list {
		keep[list[i].PodKey] = list[i].UID
	}
	for key, p := range s.pods {
		t := s.told[p.UID]
		if uid, ok := keep[key]; (!ok || uid != p.UID) && (t == nil || t.seen) {
			s.DeletePod(key, p.UID)
		}
	}
	for i := range list {
		s.SetPod(list[i])
	}
}

// Settle says that all pods were seen for the first time. Those of this node of which nobody said where they are, may be at
// any address that is not known; until all are found, such addresses may not talk.
func (s *State) Settle() {
	for _, p := range s.local {
		if len(p.Addresses) == 0 {
			s.homeless[p.UID] = struct{}{}
		}
	}
}

func (s *State) setPod(p *Pod) bool {
	old := s.pods[p.PodKey]
	if old != nil && old.UID != p.UID {
		s.DeletePod(p.PodKey, old.UID)
		old = nil
	}
	if old != nil && old.equal(p) {
		return false
	}
	if old != nil {
		s.eachClaim(old, s.disown)
	}
	s.pods[p.PodKey] = p
	for _, a := range p.Addresses {
		s.claim(p, a)
	}
	if len(p.Addresses) > 0 {
		delete(s.homeless, p.UID)
	}
	if p.Local {
		s.local[p.PodKey] = p
		s.stale = true
	}
	return true
}

func (p *Pod) equal(o *Pod) bool {
	return p.UID == o.UID && p.Local == o.Local && p.told == o.told && slices.Equal(p.Addresses, o.Addresses) &&
		slices.Equal(p.Ports, o.Ports) && maps.Equal(p.Labels, o.Labels)
}

func (s *State) eachClaim(p *Pod, do func(*Pod, netip.Addr)) {
	for _, a := range p.Addresses {
		do(p, a)
	}
}

func (s *State) eachOwned(p *Pod, do func(*Pod, netip.Addr)) {
	for _, a := range p.Addresses {
		if s.owners[a] == p {
			do(p, a)
		}
	}
}

// claim gives an address to a pod, unless its owner has the better right to it.
func (s *State) claim(p *Pod, a netip.Addr) {
	owner := s.owners[a]
	if owner == p {
		return
	}
	if owner != nil && !p.beats(owner) {
		s.rivals[a] = append(s.rivals[a], p)
		return
	}
	if owner != nil {
		s.leave(owner, a)
		s.rivals[a] = append(s.rivals[a], owner)
		s.stale = s.stale || owner.Local
	}
	s.owners[a] = p
	s.enter(p, a)
}

// disown takes an address from a pod; the best of its rivals gets it.
func (s *State) disown(p *Pod, a netip.Addr) {
	rivals := slices.DeleteFunc(s.rivals[a], func(r *Pod) bool { return r == p })
	if s.owners[a] == p {
		s.leave(p, a)
		delete(s.owners, a)
		if len(rivals) > 0 {
			best := rivals[0]
			for _, r := range rivals {
				if r.beats(best) {
					best = r
				}
			}
			rivals = slices.DeleteFunc(rivals, func(r *Pod) bool { return r == best })
			s.owners[a] = best
			s.enter(best, a)
			s.stale = s.stale || best.Local
		}
	}
	if len(rivals) == 0 {
		delete(s.rivals, a)
		return
	}
	s.rivals[a] = rivals
}

// enter and leave bring the groups up to date that a pod with an address matches.
func (s *State) enter(p *Pod, a netip.Addr) { s.move(p, a, true) }
func (s *State) leave(p *Pod, a netip.Addr) { s.move(p, a, false) }

func (s *State) move(p *Pod, a netip.Addr, in bool) {
	space, known := s.spaces[p.Namespace]
	for _, m := range s.groups {
		if m.matches(p, space, known) {
			for _, e := range m.elements(p, a) {
				m.change(e, in)
			}
		}
	}
}
