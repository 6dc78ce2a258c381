package cluster

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

const (
	keptEvents = 1024
	maxStreams = 256 // readers of events at once
)

// ring keeps the newest events. A reader is a sequence number it has seen; one that falls out of the ring is cut off.
type ring struct {
	stream string

	mu      sync.Mutex
	events  []*clusterpb.Event // by sequence, ascending, at most keptEvents
	next    uint64
	changed chan struct{}
	readers int
}

func newRing(stream string) *ring {
	return &ring{stream: stream, next: 1, changed: make(chan struct{})}
}

// add numbers and keeps events.
func (r *ring) add(now time.Time, events []*clusterpb.Event) {
	if len(events) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range events {
		e.Stream, e.Sequence, e.Time = r.stream, r.next, now.UnixMilli()
		r.next++
		r.events = append(r.events, e)
	}
	if over := len(r.events) - keptEvents; over > 0 {
		r.events = slices.Delete(r.events, 0, over)
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// after returns the events that follow a sequence number and a channel closed when more come. lost says that some
// between are not kept any more.
func (r *ring) after(seq uint64) (events []*clusterpb.Event, lost bool, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.next - uint64(len(r.events))
	if seq+1 < first {
		return slices.Clone(r.events), true, r.changed
	}
	if seq >= r.next {
		return nil, false, r.changed // from the future: wait for it
	}
	return slices.Clone(r.events[seq+1-first:]), false, r.changed
}

// oldest is the sequence number before the oldest kept event.
func (r *ring) oldest() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.next - uint64(len(r.events)) - 1
}

// enter takes a place for a reader.
func (r *ring) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readers >= maxStreams {
		return false
	}
	r.readers++
	return true
}

func (r *ring) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readers--
}

// Events implements clusterpb.ClusterServer.
func (s *Service) Events(req *clusterpb.EventsRequest, stream clusterpb.Cluster_EventsServer) error {
	ctx := stream.Context()
	if _, err := s.allow(ctx, members); err != nil {
		return err
	}
	if !s.events.enter() {
		return status.Errorf(codes.ResourceExhausted, "%d clients read events here already: ask another server", maxStreams)
	}
	defer s.events.leave()
	seq, gap := req.After, false
	if req.Stream != s.events.stream {
		seq, gap = s.events.oldest(), req.Stream != ""
	}
	for first := true; ; first = false {
		events, lost, more := s.events.after(seq)
		if lost && !first {
			return status.Error(codes.OutOfRange, "this stream was read too slowly; events were lost: look at Members and begin again")
		}
		if lost || gap {
			gap = false
			if err := stream.Send(&clusterpb.Event{Stream: s.events.stream, Type: clusterpb.EventType_EVENT_GAP, Time: s.cfg.Now().UnixMilli(), Text: "events were lost"}); err != nil {
				return err
			}
		}
		for _, e := range events {
			if err := stream.Send(e); err != nil {
				return err
			}
			seq = e.Sequence
		}
		select {
		case <-ctx.Done():
			return nil
		case <-more:
		}
	}
}

// picture is what events are the difference of.
type picture struct {
	leader  string
	servers []raftstore.Server
	members []member.Member
	names   map[string]string // of servers, by ID
	fault   string
}

// differences says what happened between two pictures. It is pure.
func differences(old, now picture) []*clusterpb.Event {
	var out []*clusterpb.Event
	for _, m := range now.members {
		i := slices.IndexFunc(old.members, func(o member.Member) bool { return o.ServerID == m.ServerID && o.Name == m.Name })
		if i < 0 {
			out = append(out, about(clusterpb.EventType_EVENT_MEMBER_JOINED, m, fmt.Sprintf("%s %s at %s is %s", m.Role, m.Name, m.Addr, m.State)))
			continue
		}
		o := old.members[i]
		if o.State != m.State {
			out = append(out, about(clusterpb.EventType_EVENT_MEMBER_STATE, m, fmt.Sprintf("%s %s was %s, is %s", m.Role, m.Name, o.State, m.State)))
		}
		if o.Addr != m.Addr || o.APIAddr != m.APIAddr || o.Version != m.Version {
			out = append(out, about(clusterpb.EventType_EVENT_MEMBER_UPDATED, m, fmt.Sprintf("%s %s is at %s and runs %s", m.Role, m.Name, m.Addr, m.Version)))
		}
	}
	for _, o := range old.members {
		if !slices.ContainsFunc(now.members, func(m member.Member) bool { return o.ServerID == m.ServerID && o.Name == m.Name }) {
			out = append(out, about(clusterpb.EventType_EVENT_MEMBER_REMOVED, o, fmt.Sprintf("%s %s is forgotten", o.Role, o.Name)))
		}
	}
	return append(append(out, votes(old, now)...), leadership(old, now)...)
}

func about(t clusterpb.EventType, m member.Member, text string) *clusterpb.Event {
	return &clusterpb.Event{Type: t, ServerId: m.ServerID, Name: m.Name, State: stateProto(m.State), Text: text}
}

func (p picture) nameOf(id string) string {
	if name := p.names[id]; name != "" {
		return name
	}
	return short(id)
}

func votes(old, now picture) []*clusterpb.Event {
	var out []*clusterpb.Event
	say := func(t clusterpb.EventType, id, what string) {
		out = append(out, &clusterpb.Event{Type: t, ServerId: id, Name: now.nameOf(id), Text: "server " + now.nameOf(id) + " " + what})
	}
	for _, s := range now.servers {
		was := isVoter(old.servers, s.ID)
		switch {
		case s.Voter && !was:
			say(clusterpb.EventType_EVENT_VOTERS, s.ID, "votes")
		case !s.Voter && was:
			say(clusterpb.EventType_EVENT_VOTERS, s.ID, "votes no more")
		case !inConfiguration(old.servers, s.ID):
			say(clusterpb.EventType_EVENT_VOTERS, s.ID, "learns")
		}
	}
	for _, s := range old.servers {
		if !inConfiguration(now.servers, s.ID) {
			say(clusterpb.EventType_EVENT_MEMBER_REMOVED, s.ID, "is out of the configuration")
		}
	}
	return out
}

func leadership(old, now picture) []*clusterpb.Event {
	var out []*clusterpb.Event
	if old.leader != now.leader {
		e := &clusterpb.Event{Type: clusterpb.EventType_EVENT_LEADER, ServerId: now.leader, Text: "no server leads"}
		if now.leader != "" {
			e.Name, e.Text = now.nameOf(now.leader), "server "+now.nameOf(now.leader)+" leads"
		}
		out = append(out, e)
	}
	if old.fault != now.fault {
		text := "writes are accepted here"
		if now.fault != "" {
			text = "writes are refused here: " + now.fault
		}
		out = append(out, &clusterpb.Event{Type: clusterpb.EventType_EVENT_HEALTH, Text: text})
	}
	return out
}
