package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	discovery "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// confirmTimeout is how long one request to the API may take.
	confirmTimeout = 2 * time.Second
	// conflictDelay is how long after another host's claim a change of the objects may arrive.
	conflictDelay = time.Second
	// defendInterval is the least time between two defences of an address (DEFEND_INTERVAL of RFC 5227).
	defendInterval = 10 * time.Second
)

// claims are the times at which a new holder announces an address, counted from the moment it got the address. Some
// neighbours accept no change of an entry within one second of another (Linux: neigh/locktime); for these the second claim
// counts.
var claims = []time.Duration{0, 1100 * time.Millisecond, 3 * time.Second}

// channel is a link and a family, for which there is one speaker.
type channel struct {
	link int
	v4   bool
}

// holding is one address that this node announces.
type holding struct {
	on          channel
	since       time.Time
	claimed     int       // the number of claims sent so far
	conflictDue time.Time // when to ask the API about another host's claim; zero: no other host claims the address
	claimant    string    // the MAC address of that host
}

// state holds the Announcer's view of the cluster and its speakers. Only Run's goroutine uses it.
type state struct {
	a          *Announcer
	balancers  map[types.NamespacedName]balancer
	candidates candidates
	lans       []lan
	speakers   map[channel]*speaker
	held       map[netip.Addr]*holding
	// yielded are addresses that other hosts claim while the API does not answer; the value is the time of the next request.
	yielded   map[netip.Addr]time.Time
	defended  map[netip.Addr]time.Time
	lastError string // the last error logged, so that a repeated error is logged once
	outside   map[netip.Addr]bool
}

func newState(a *Announcer) state {
	return state{
		a: a, balancers: map[types.NamespacedName]balancer{}, speakers: map[channel]*speaker{}, held: map[netip.Addr]*holding{},
		yielded: map[netip.Addr]time.Time{}, defended: map[netip.Addr]time.Time{}, outside: map[netip.Addr]bool{},
	}
}

// reconcile takes in changes and acts on them. It returns when to call it again if there are no changes; zero is never.
func (m *state) reconcile(ctx context.Context, n changes, now time.Time) (next time.Time) {
	err := m.readChanges(n)
	if len(m.balancers) > 0 {
		err = errors.Join(err, m.publish(ctx))
	}
	m.resolveConflicts(ctx, n, now)
	err = errors.Join(err, m.updateSpeakers(now), m.sendClaims(now))
	if err != nil {
		if text := err.Error(); text != m.lastError && ctx.Err() == nil {
			m.lastError = text
			m.a.cfg.Logger.Warn("cannot announce load balancer addresses as they should be; the node tries again in a second", "err", err)
		}
		return now.Add(retry)
	}
	m.lastError = ""
	return m.next()
}

// readChanges reads the changed objects. An object that cannot be read stays among the pending changes.
func (m *state) readChanges(n changes) error {
	var errs []error
	keep := func(err error, forget func(*changes)) {
		if err != nil {
			errs = append(errs, err)
			m.a.mu.Lock()
			forget(&m.a.pending)
			m.a.mu.Unlock()
		}
	}
	for key := range n.services {
		keep(m.readService(key), func(n *changes) { n.services[key] = struct{}{} })
	}
	if n.nodes {
		nodes, err := m.a.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
		keep(err, func(n *changes) { n.nodes = true })
		views := make([]nodeView, len(nodes))
		for i, node := range nodes {
			views[i] = nodeViewOf(node)
		}
		m.candidates = candidatesOf(views)
		for key, b := range m.balancers {
			b.holders = nil
			m.balancers[key] = b
		}
	}
	if n.lans {
		lans, err := readLANs(m.a.ns, m.a.cfg.Inside)
		keep(err, func(n *changes) { n.lans = true })
		if err == nil {
			m.lans = lans
		}
	}
	return errors.Join(errs...)
}

func (m *state) readService(key types.NamespacedName) error {
	svc, err := m.a.cfg.Informers.Core().V1().Services().Lister().Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	b, ok := balancerOf(svc)
	m.a.mu.Lock()
	if delete(m.a.local, key); ok && b.local {
		m.a.local[key] = true // before the endpoints are read, so that later changes of them are noted
	}
	m.a.mu.Unlock()
	if delete(m.balancers, key); !ok {
		return nil
	}
	if b.local {
		of := labels.SelectorFromSet(labels.Set{discovery.LabelServiceName: key.Name})
		list, err := m.a.cfg.Informers.Discovery().V1().EndpointSlices().Lister().EndpointSlices(key.Namespace).List(of)
		if err != nil {
			return err
		}
		b.at = nodesOf(list)
	}
	m.balancers[key] = b
	return nil
}

// publish writes this machine's LANs to its Node, where the other nodes read them.
func (m *state) publish(ctx context.Context) error {
	want := formatLANs(networksOf(m.lans))
	if len(m.lans) == 0 {
		return nil // not read yet, or the machine has no link with neighbours
	}
	node, err := m.a.cfg.Informers.Core().V1().Nodes().Lister().Get(m.a.cfg.NodeName)
	if apierrors.IsNotFound(err) {
		return nil // the Node's arrival will be a change
	}
	if err != nil || node.Annotations[LANsAnnotation] == want {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if err := m.a.cfg.Publish(asking, LANsAnnotation, want); err != nil {
		return fmt.Errorf("publish this machine's networks in its Node: %w", err)
	}
	return nil
}

// wanted returns the addresses that this node has to announce, with their links.
func (m *state) wanted() map[netip.Addr]link {
	out := map[netip.Addr]link{}
	outside := map[netip.Addr]bool{}
	for key, b := range m.balancers {
		if b.holders == nil {
			for _, a := range b.addresses {
				b.holders = append(b.holders, m.candidates.holder(b, a))
			}
			m.balancers[key] = b
		}
		for i, a := range b.addresses {
			switch b.holders[i] {
			case m.a.cfg.NodeName:
				if l, ok := linkFor(m.lans, a); ok {
					out[a] = l.link
				}
			case "":
				if outside[a] = true; !m.outside[a] && len(m.candidates) > 0 {
					m.a.cfg.Logger.Info("no node announces this address: no ready node that may announce load balancers is on a network that contains it, or externalTrafficPolicy is Local and none of these nodes has an endpoint", "address", a, "service", key)
				}
			}
		}
	}
	m.outside = outside
	return out
}

// updateSpeakers makes the speakers answer for the addresses that are wanted and not yielded, and for no others.
func (m *state) updateSpeakers(now time.Time) error {
	wanted := m.wanted()
	links, lists := map[channel]link{}, map[channel][]netip.Addr{}
	for a, l := range wanted {
		if _, yes := m.yielded[a]; yes {
			continue
		}
		c := channel{l.index, a.Is4()}
		links[c] = l
		lists[c] = append(lists[c], a)
	}
	for a := range m.yielded {
		if _, ours := wanted[a]; !ours {
			delete(m.yielded, a)
		}
	}
	for a := range m.defended {
		if _, ours := wanted[a]; !ours {
			delete(m.defended, a)
		}
	}
	m.closeSpeakers(func(c channel, s *speaker) bool { return links[c] == s.link })
	var errs []error
	for c, list := range lists {
		if err := m.updateSpeaker(c, links[c], list, now); err != nil {
			errs = append(errs, err)
		}
	}
	for a, h := range m.held {
		s := m.speakers[h.on]
		if s == nil || !s.holds(a) {
			m.a.cfg.Logger.Info("this node no longer announces a load balancer's address", "address", a)
			delete(m.held, a)
		}
	}
	return errors.Join(errs...)
}

// closeSpeakers closes the speakers whose link changed, that have no address to announce, or that failed.
func (m *state) closeSpeakers(useful func(channel, *speaker) bool) {
	for c, s := range m.speakers {
		select {
		case <-s.ended:
			m.a.cfg.Logger.Warn("the speaker on a link failed; a new one starts", "link", s.link.name, "err", s.err)
		default:
			if useful(c, s) {
				continue
			}
		}
		s.close()
		delete(m.speakers, c)
	}
}

func (m *state) updateSpeaker(c channel, l link, list []netip.Addr, now time.Time) error {
	s := m.speakers[c]
	if s == nil {
		var err error
		tell := events{claim: m.a.claimed, ended: func() { m.a.note(func(*changes) {}) }}
		if s, err = newSpeaker(m.a.ns, l, c.v4, tell); err != nil {
			return err
		}
		m.speakers[c] = s
		for a, h := range m.held {
			if h.on == c { // claim them again: the link may have another address now
				delete(m.held, a)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	err := s.setAddresses(list)
	for _, a := range list {
		if h := m.held[a]; h == nil || h.on != c {
			m.held[a] = &holding{on: c, since: now}
			m.a.cfg.Logger.Info("this node announces a load balancer's address", "address", a, "link", l.name)
		}
	}
	return err
}

// sendClaims sends the claims that are due.
func (m *state) sendClaims(now time.Time) error {
	var errs []error
	for a, h := range m.held {
		for h.claimed < len(claims) && !h.since.Add(claims[h.claimed]).After(now) {
			if err := m.speakers[h.on].announce(a); err != nil {
				errs = append(errs, fmt.Errorf("claim %s: %w", a, err))
				break
			}
			h.claimed++
		}
	}
	return errors.Join(errs...)
}

// resolveConflicts acts on claims of other hosts; see the package's documentation.
func (m *state) resolveConflicts(ctx context.Context, n changes, now time.Time) {
	for a, by := range n.claims {
		if h := m.held[a]; h != nil && h.conflictDue.IsZero() {
			h.claimant, h.conflictDue = by, now.Add(conflictDelay)
			if soonest := m.defended[a].Add(defendInterval); soonest.After(h.conflictDue) {
				h.conflictDue = soonest
			}
		}
	}
	due := map[netip.Addr]*holding{}
	for a, h := range m.held {
		if !h.conflictDue.IsZero() && !h.conflictDue.After(now) {
			due[a] = h
		}
	}
	if len(due) > 0 {
		wanted := m.wanted()
		maps.DeleteFunc(due, func(a netip.Addr, _ *holding) bool {
			_, still := wanted[a]
			return !still
		})
	}
	for a, at := range m.yielded {
		if !at.After(now) {
			due[a] = nil
		}
	}
	if len(due) == 0 {
		return
	}
	err := m.confirm(ctx)
	for a, h := range due {
		switch {
		case err != nil:
			if h != nil {
				m.a.cfg.Logger.Warn("another host claims this address and the API does not say which node has it; this node stays silent until the API answers", "address", a, "by", h.claimant, "err", err)
			}
			m.yielded[a] = now.Add(defendInterval)
		case h == nil:
			delete(m.yielded, a)
		default:
			m.a.cfg.Logger.Warn("another host on the LAN claims this address: it has the address, or it is a node that has not received the change yet; this node claims it again", "address", a, "by", h.claimant)
			m.defended[a] = now
			h.conflictDue, h.claimant = time.Time{}, ""
			h.claimed = len(claims) - 1
			h.since = now.Add(-claims[h.claimed])
		}
	}
}

func (m *state) confirm(ctx context.Context) error {
	if m.a.cfg.Confirm == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	return m.a.cfg.Confirm(asking)
}

// next returns when something is due; zero is never.
func (m *state) next() time.Time {
	var due []time.Time
	for _, h := range m.held {
		if h.claimed < len(claims) {
			due = append(due, h.since.Add(claims[h.claimed]))
		}
		if !h.conflictDue.IsZero() {
			due = append(due, h.conflictDue)
		}
	}
	for _, at := range m.yielded {
		due = append(due, at)
	}
	if len(due) == 0 {
		return time.Time{}
	}
	return slices.MinFunc(due, func(a, b time.Time) int { return cmp.Compare(a.UnixNano(), b.UnixNano()) })
}

// closeAll closes all speakers.
func (m *state) closeAll() {
	m.closeSpeakers(func(channel, *speaker) bool { return false })
}
