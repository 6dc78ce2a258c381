package cluster

import (
	"fmt"
	"slices"

	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
	"github.com/balsahq/balsa/raftstore/member"
)

// clusterState is the state of the cluster as this server sees it. Events are the differences of two such states.
type clusterState struct {
	leader  string
	servers []raftstore.Server
	members []member.Member
	names   map[string]string // of servers, by ID
	fault   string
}

// stateEvents returns the events between two states. It is pure.
func stateEvents(old, now clusterState) []*clusterpb.Event {
	var out []*clusterpb.Event
	for _, m := range now.members {
		i := slices.IndexFunc(old.members, func(o member.Member) bool { return o.ServerID == m.ServerID && o.Name == m.Name })
		if i < 0 {
			out = append(out, memberEvent(clusterpb.EventType_EVENT_MEMBER_JOINED, m, fmt.Sprintf("%s %s at %s is %s", m.Role, m.Name, m.Addr, m.State)))
			continue
		}
		o := old.members[i]
		if o.State != m.State {
			out = append(out, memberEvent(clusterpb.EventType_EVENT_MEMBER_STATE, m, fmt.Sprintf("%s %s was %s, is %s", m.Role, m.Name, o.State, m.State)))
		}
		if o.Addr != m.Addr || o.APIAddr != m.APIAddr || o.Version != m.Version {
			out = append(out, memberEvent(clusterpb.EventType_EVENT_MEMBER_UPDATED, m, fmt.Sprintf("%s %s is at %s and runs %s", m.Role, m.Name, m.Addr, m.Version)))
		}
	}
	for _, o := range old.members {
		if !slices.ContainsFunc(now.members, func(m member.Member) bool { return o.ServerID == m.ServerID && o.Name == m.Name }) {
			out = append(out, memberEvent(clusterpb.EventType_EVENT_MEMBER_REMOVED, o, fmt.Sprintf("%s %s is forgotten", o.Role, o.Name)))
		}
	}
	return append(append(out, voterEvents(old, now)...), leaderEvents(old, now)...)
}

func memberEvent(t clusterpb.EventType, m member.Member, text string) *clusterpb.Event {
	return &clusterpb.Event{Type: t, ServerId: m.ServerID, Name: m.Name, State: stateProto(m.State), Text: text}
}

func (p clusterState) nameOf(id string) string {
	if name := p.names[id]; name != "" {
		return name
	}
	return short(id)
}

func voterEvents(old, now clusterState) []*clusterpb.Event {
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

func leaderEvents(old, now clusterState) []*clusterpb.Event {
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
