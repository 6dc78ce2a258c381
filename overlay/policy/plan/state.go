package plan

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// State holds the known policies, pods and namespaces, and the layout for them.
type State struct {
	policies map[string]map[string]*Policy // by namespace and name
	spaces   map[string]map[string]string  // namespaces' labels
	pods     map[PodKey]*Pod
	local    map[PodKey]*Pod
	owners   map[netip.Addr]*Pod
	rivals   map[netip.Addr][]*Pod // pods with an address that another pod owns
	attached map[types.UID]*attachment
	// unlocated are pods of this node that are older than this process and whose addresses are not known.
	unlocated map[types.UID]struct{}

	layout *layout
	stale  bool // the layout has to be built again
	groups map[string]*members
	kernel baseline
}

// attachment is a pod that the agent attached, with its addresses.
type attachment struct {
	addresses []netip.Addr
	seen      bool // the API has shown that pod
}

// NewState returns a State without policies, pods and namespaces.
func NewState() *State {
	s := &State{policies: map[string]map[string]*Policy{}}
	s.ForgetKernel()
	s.ForgetPods()
	return s
}

// ForgetPods removes all pods and namespaces, and the layout for them.
func (s *State) ForgetPods() {
	s.spaces, s.pods, s.local = map[string]map[string]string{}, map[PodKey]*Pod{}, map[PodKey]*Pod{}
	s.owners, s.rivals = map[netip.Addr]*Pod{}, map[netip.Addr][]*Pod{}
	s.attached, s.unlocated = map[types.UID]*attachment{}, map[types.UID]struct{}{}
	s.layout, s.groups, s.stale = newLayout(), map[string]*members{}, true
	s.ForgetKernel()
}

// SetPolicy adds or replaces a policy.
func (s *State) SetPolicy(p *Policy) {
	if s.policies[p.Namespace] == nil {
		s.policies[p.Namespace] = map[string]*Policy{}
	}
	s.policies[p.Namespace][p.Name] = p
	s.stale = true
}

// DeletePolicy removes a policy.
func (s *State) DeletePolicy(namespace, name string) {
	delete(s.policies[namespace], name)
	if len(s.policies[namespace]) == 0 {
		delete(s.policies, namespace)
	}
	s.stale = true
}

// ReplacePolicies removes all policies but these.
func (s *State) ReplacePolicies(list []*Policy) {
	s.policies, s.stale = map[string]map[string]*Policy{}, true
	for _, p := range list {
		s.SetPolicy(p)
	}
}

// Policy returns a policy by its name; nil if there is none.
func (s *State) Policy(namespace, name string) *Policy { return s.policies[namespace][name] }

// Policies tells whether there are any.
func (s *State) Policies() bool { return len(s.policies) > 0 }

// SetNamespace sets a namespace's labels; it reports whether that changes anything.
func (s *State) SetNamespace(name string, labels map[string]string) bool {
	if old, known := s.spaces[name]; known && maps.Equal(old, labels) {
		return false
	}
	s.changeNamespace(name, func() { s.spaces[name] = labels })
	return true
}

// DeleteNamespace removes a namespace; it reports whether it was known.
func (s *State) DeleteNamespace(name string) bool {
	if _, known := s.spaces[name]; !known {
		return false
	}
	s.changeNamespace(name, func() { delete(s.spaces, name) })
	return true
}

// Namespaces returns the names of the known namespaces.
func (s *State) Namespaces() []string { return slices.Collect(maps.Keys(s.spaces)) }

func (s *State) changeNamespace(name string, change func()) {
	var list []*Pod
	for _, p := range s.pods {
		if p.Namespace == name {
			list = append(list, p)
		}
	}
	for _, p := range list {
		s.eachOwned(p, s.removeFromGroups)
	}
	change()
	for _, p := range list {
		s.eachOwned(p, s.addToGroups)
	}
}

// SetPod sets a pod as the API has it; it reports whether that changes anything.
func (s *State) SetPod(p Pod) bool {
	if t := s.attached[p.UID]; t != nil && p.Local {
		t.seen, p.attached, p.Addresses = true, true, t.addresses
	}
	if old := s.pods[p.PodKey]; old != nil && old.UID != p.UID && p.Created <= old.Created {
		if t := s.attached[old.UID]; t != nil && !t.seen {
			return false // the watch is behind: it still shows the former pod of that name
		}
	}
	return s.setPod(&p)
}

// SetAttached sets the addresses of a pod of this node, as the agent attached it; the API may show the pod later. It reports
// whether that changes anything.
func (s *State) SetAttached(p Pod) bool {
	p.Local, p.attached = true, true
	before := s.attached[p.UID]
	if known := s.pods[p.PodKey]; known != nil && known.UID == p.UID {
		p.Labels, p.Ports = known.Labels, known.Ports // the API's values are at least as new
	}
	if before != nil && slices.Equal(before.addresses, p.Addresses) {
		return false
	}
	for _, a := range p.Addresses {
		s.removeUnseen(a, p.UID)
	}
	t := &attachment{addresses: p.Addresses}
	if before != nil {
		t.seen = before.seen
	} else if known := s.pods[p.PodKey]; known != nil && known.UID == p.UID {
		t.seen = true
	}
	s.attached[p.UID] = t
	s.setPod(&p)
	return true
}

// removeUnseen removes the pod that was attached with an address before, if the API has never shown it.
func (s *State) removeUnseen(a netip.Addr, but types.UID) {
	p := s.owners[a]
	if p == nil || p.UID == but || !p.attached {
		return
	}
	if t := s.attached[p.UID]; t != nil && !t.seen {
		s.DeletePod(p.PodKey, p.UID)
	}
}

// DeletePod removes a pod; uid "" is any pod of the name. It reports whether it was known.
func (s *State) DeletePod(key PodKey, uid types.UID) bool {
	p := s.pods[key]
	if p == nil || uid != "" && p.UID != uid {
		delete(s.attached, uid)
		return false
	}
	delete(s.attached, p.UID)
	delete(s.unlocated, p.UID)
	s.eachClaim(p, s.releaseAddress)
	delete(s.pods, key)
	if p.Local {
		delete(s.local, key)
		s.stale = true
	}
	return true
}

// ReplacePods sets the pods to the list. It keeps pods that the agent has attached and the API has not shown yet.
func (s *State) ReplacePods(list []Pod) {
	keep := make(map[PodKey]types.UID, len(list))
	for i := range list {
		keep[list[i].PodKey] = list[i].UID
	}
	for key, p := range s.pods {
		t := s.attached[p.UID]
		if uid, ok := keep[key]; (!ok || uid != p.UID) && (t == nil || t.seen) {
			s.DeletePod(key, p.UID)
		}
	}
	for i := range list {
		s.SetPod(list[i])
	}
}

// FirstListDone notes that the first list of all pods is complete. Pods of this node without a known address may have any
// unknown address; until the addresses of all of them are known, unknown addresses are blocked.
func (s *State) FirstListDone() {
	for _, p := range s.local {
		if len(p.Addresses) == 0 {
			s.unlocated[p.UID] = struct{}{}
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
		s.eachClaim(old, s.releaseAddress)
	}
	s.pods[p.PodKey] = p
	for _, a := range p.Addresses {
		s.claimAddress(p, a)
	}
	if len(p.Addresses) > 0 {
		delete(s.unlocated, p.UID)
	}
	if p.Local {
		s.local[p.PodKey] = p
		s.stale = true
	}
	return true
}

func (p *Pod) equal(o *Pod) bool {
	return p.UID == o.UID && p.Local == o.Local && p.attached == o.attached && slices.Equal(p.Addresses, o.Addresses) &&
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

// claimAddress gives an address to a pod, unless its owner has priority.
func (s *State) claimAddress(p *Pod, a netip.Addr) {
	owner := s.owners[a]
	if owner == p {
		return
	}
	if owner != nil && !p.hasPriorityOver(owner) {
		s.rivals[a] = append(s.rivals[a], p)
		return
	}
	if owner != nil {
		s.removeFromGroups(owner, a)
		s.rivals[a] = append(s.rivals[a], owner)
		s.stale = s.stale || owner.Local
	}
	s.owners[a] = p
	s.addToGroups(p, a)
}

// releaseAddress takes an address from a pod; the rival with priority over the others gets it.
func (s *State) releaseAddress(p *Pod, a netip.Addr) {
	rivals := slices.DeleteFunc(s.rivals[a], func(r *Pod) bool { return r == p })
	if s.owners[a] == p {
		s.removeFromGroups(p, a)
		delete(s.owners, a)
		if len(rivals) > 0 {
			best := rivals[0]
			for _, r := range rivals {
				if r.hasPriorityOver(best) {
					best = r
				}
			}
			rivals = slices.DeleteFunc(rivals, func(r *Pod) bool { return r == best })
			s.owners[a] = best
			s.addToGroups(best, a)
			s.stale = s.stale || best.Local
		}
	}
	if len(rivals) == 0 {
		delete(s.rivals, a)
		return
	}
	s.rivals[a] = rivals
}

// addToGroups and removeFromGroups add and remove a pod's address in the groups that the pod matches.
func (s *State) addToGroups(p *Pod, a netip.Addr)      { s.updateGroups(p, a, true) }
func (s *State) removeFromGroups(p *Pod, a netip.Addr) { s.updateGroups(p, a, false) }

func (s *State) updateGroups(p *Pod, a netip.Addr, in bool) {
	space, known := s.spaces[p.Namespace]
	for _, m := range s.groups {
		if m.matches(p, space, known) {
			for _, e := range m.elements(p, a) {
				m.change(e, in)
			}
		}
	}
}
