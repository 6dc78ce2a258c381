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
	// patience is how long one question to the API may take.
	patience = 2 * time.Second
	// doubt is how long news of a change may take to come after somebody else's claim.
	doubt = time.Second
	// defence is the least time between two defences of an address (DEFEND_INTERVAL of RFC 5227).
	defence = 10 * time.Second
)

// claims are when a new holder tells that it has an address, counted from when it got it. Some neighbours take no news
// within a second of other news (Linux: neigh/locktime), so that the second is the one that counts for them.
var claims = []time.Duration{0, 1100 * time.Millisecond, 3 * time.Second}

// channel is one way to speak: a link and a family.
type channel struct {
	link int
	v4   bool
}

// holding is one address that this node announces.
type holding struct {
	on    channel
	since time.Time
	told  int       // how many of claims were made
	doubt time.Time // when to find out about somebody else's claim; zero: nobody claims it
	by    string    // who does
}

// mind is what the Announcer knows and does; one goroutine's.
type mind struct {
	a         *Announcer
	balancers map[types.NamespacedName]balancer
	field     field
	lans      []lan
	speakers  map[channel]*speaker
	held      map[netip.Addr]*holding
	// yielded are addresses that others claim while the API cannot be asked, with when to ask again.
	yielded  map[netip.Addr]time.Time
	defended map[netip.Addr]time.Time
	failed   string // the last error told, so that it is told once
	outside  map[netip.Addr]bool
}

func newMind(a *Announcer) mind {
	return mind{
		a: a, balancers: map[types.NamespacedName]balancer{}, speakers: map[channel]*speaker{}, held: map[netip.Addr]*holding{},
		yielded: map[netip.Addr]time.Time{}, defended: map[netip.Addr]time.Time{}, outside: map[netip.Addr]bool{},
	}
}

// think takes news in and does what follows from them. It returns when it wants to be called again without news; zero is
// never.
func (m *mind) think(ctx context.Context, n news, now time.Time) (next time.Time) {
	err := m.learn(n)
	if len(m.balancers) > 0 {
		err = errors.Join(err, m.publish(ctx))
	}
	m.settleDoubts(ctx, n, now)
	err = errors.Join(err, m.hold(now), m.speak(now))
	if err != nil {
		if text := err.Error(); text != m.failed && ctx.Err() == nil {
			m.failed = text
			m.a.cfg.Logger.Warn("load balancer addresses are not announced as they should be", "err", err)
		}
		return now.Add(retry)
	}
	m.failed = ""
	return m.next()
}

// learn brings what is known up to date. What could not be read is read again.
func (m *mind) learn(n news) error {
	var errs []error
	keep := func(err error, forget func(*news)) {
		if err != nil {
			errs = append(errs, err)
			m.a.mu.Lock()
			forget(&m.a.news)
			m.a.mu.Unlock()
		}
	}
	for key := range n.services {
		keep(m.learnService(key), func(n *news) { n.services[key] = struct{}{} })
	}
	if n.nodes {
		nodes, err := m.a.cfg.Informers.Core().V1().Nodes().Lister().List(labels.Everything())
		keep(err, func(n *news) { n.nodes = true })
		stations := make([]station, len(nodes))
		for i, node := range nodes {
			stations[i] = stationOf(node)
		}
		m.field = fieldOf(stations)
		for key, b := range m.balancers {
			b.holders = nil
			m.balancers[key] = b
		}
	}
	if n.lans {
		lans, err := readLANs(m.a.ns, m.a.cfg.Inside)
		keep(err, func(n *news) { n.lans = true })
		if err == nil {
			m.lans = lans
		}
	}
	return errors.Join(errs...)
}

func (m *mind) learnService(key types.NamespacedName) error {
	svc, err := m.a.cfg.Informers.Core().V1().Services().Lister().Services(key.Namespace).Get(key.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	b, ok := balancerOf(svc)
	m.a.mu.Lock()
	if delete(m.a.local, key); ok && b.local {
		m.a.local[key] = true // before the endpoints are read: later ones are news
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

// publish tells the others, by this machine's Node, which LANs it is on.
func (m *mind) publish(ctx context.Context) error {
	want := formatLANs(networksOf(m.lans))
	if len(m.lans) == 0 {
		return nil // not looked at yet, or cut off: nobody would hear
	}
	node, err := m.a.cfg.Informers.Core().V1().Nodes().Lister().Get(m.a.cfg.NodeName)
	if apierrors.IsNotFound(err) {
		return nil // it will be news
	}
	if err != nil || node.Annotations[LANsAnnotation] == want {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := m.a.cfg.Publish(asking, LANsAnnotation, want); err != nil {
		return fmt.Errorf("tell the others which networks this machine is on: %w", err)
	}
	return nil
}

// wanted is which addresses this node has to announce, and on which link.
func (m *mind) wanted() map[netip.Addr]link {
	out := map[netip.Addr]link{}
	outside := map[netip.Addr]bool{}
	for key, b := range m.balancers {
		if b.holders == nil {
			for _, a := range b.addresses {
				b.holders = append(b.holders, m.field.holder(b, a))
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
				if outside[a] = true; !m.outside[a] && len(m.field) > 0 {
					m.a.cfg.Logger.Info("nobody announces this address now: no node that is ready and may have it is on a network with it, or has an endpoint where the policy is Local", "address", a, "service", key)
				}
			}
		}
	}
	m.outside = outside
	return out
}

// hold makes the speakers answer for the addresses that are wanted and not yielded, and for no others.
func (m *mind) hold(now time.Time) error {
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
	m.drop(func(c channel, s *speaker) bool { return links[c] == s.link })
	var errs []error
	for c, list := range lists {
		if err := m.holdOn(c, links[c], list, now); err != nil {
			errs = append(errs, err)
		}
	}
	for a, h := range m.held {
		s := m.speakers[h.on]
		if s == nil || !s.holds(a) {
			m.a.cfg.Logger.Info("no longer announcing", "address", a)
			delete(m.held, a)
		}
	}
	return errors.Join(errs...)
}

// drop closes the speakers that are of no use: their link is another, or nothing is wanted from them, or they cannot go on.
func (m *mind) drop(useful func(channel, *speaker) bool) {
	for c, s := range m.speakers {
		select {
		case <-s.ended:
			m.a.cfg.Logger.Warn("answers on a link ended, beginning anew", "link", s.link.name, "err", s.err)
		default:
			if useful(c, s) {
				continue
			}
		}
		s.close()
		delete(m.speakers, c)
	}
}

func (m *mind) holdOn(c channel, l link, list []netip.Addr, now time.Time) error {
	s := m.speakers[c]
	if s == nil {
		var err error
		tell := ears{claim: m.a.claimed, ended: func() { m.a.tell(func(*news) {}) }}
		if s, err = newSpeaker(m.a.ns, l, c.v4, tell); err != nil {
			return err
		}
		m.speakers[c] = s
		for a, h := range m.held {
			if h.on == c { // they are told anew: the link may have another address now
				delete(m.held, a)
			}
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	err := s.hold(list)
	for _, a := range list {
		if h := m.held[a]; h == nil || h.on != c {
			m.held[a] = &holding{on: c, since: now}
			m.a.cfg.Logger.Info("announcing", "address", a, "link", l.name)
		}
	}
	return err
}

// speak makes the claims that are due.
func (m *mind) speak(now time.Time) error {
	var errs []error
	for a, h := range m.held {
		for h.told < len(claims) && !h.since.Add(claims[h.told]).After(now) {
			if err := m.speakers[h.on].announce(a); err != nil {
				errs = append(errs, fmt.Errorf("claim %s: %w", a, err))
				break
			}
			h.told++
		}
	}
	return errors.Join(errs...)
}

// settleDoubts looks at claims of others; see the package's documentation.
func (m *mind) settleDoubts(ctx context.Context, n news, now time.Time) {
	for a, by := range n.claims {
		if h := m.held[a]; h != nil && h.doubt.IsZero() {
			h.by, h.doubt = by, now.Add(doubt)
			if soonest := m.defended[a].Add(defence); soonest.After(h.doubt) {
				h.doubt = soonest
			}
		}
	}
	due := map[netip.Addr]*holding{}
	for a, h := range m.held {
		if !h.doubt.IsZero() && !h.doubt.After(now) {
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
				m.a.cfg.Logger.Warn("somebody else claims this address and the API cannot be asked who has it: silent until it can", "address", a, "by", h.by, "err", err)
			}
			m.yielded[a] = now.Add(defence)
		case h == nil:
			delete(m.yielded, a)
		default:
			m.a.cfg.Logger.Warn("somebody else on the LAN claims this address: another host has it, or another node has not heard yet that it is this one's", "address", a, "by", h.by)
			m.defended[a] = now
			h.doubt, h.by = time.Time{}, ""
			h.told = len(claims) - 1
			h.since = now.Add(-claims[h.told])
		}
	}
}

func (m *mind) confirm(ctx context.Context) error {
	if m.a.cfg.Confirm == nil {
		return nil
	}
	asking, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return m.a.cfg.Confirm(asking)
}

// next is when something is due.
func (m *mind) next() time.Time {
	var due []time.Time
	for _, h := range m.held {
		if h.told < len(claims) {
			due = append(due, h.since.Add(claims[h.told]))
		}
		if !h.doubt.IsZero() {
			due = append(due, h.doubt)
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

// silence ends all speakers.
func (m *mind) silence() {
	m.drop(func(channel, *speaker) bool { return false })
}
