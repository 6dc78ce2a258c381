package member

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Part is what a server is to Raft.
type Part string

const (
	Leads  Part = "leader"
	Votes  Part = "voter"
	Learns Part = "learner"
)

// ServerStatus is one server, for people.
type ServerStatus struct {
	ID      string
	Name    string
	Part    Part
	Healthy bool
	// Gossip is what gossip says, "" when it knows no such server.
	Gossip State
	// Lag is how many entries the server lacks.
	Lag uint64
	// LastContact is how long ago it heard the leader, or said so; negative when
	// it did not answer.
	LastContact time.Duration
	// Since is when Healthy became as it is, as far as this server saw.
	Since time.Time
	// Waits says what the autopilot waits for, "" for nothing.
	Waits string
}

// Status is the cluster of servers at a glance.
type Status struct {
	At      time.Time
	Leader  string
	Servers []ServerStatus // leader, voters, learners, each by name
	// Voters is their number; Tolerates how many more of them may die, negative
	// when there is no quorum.
	Voters, Tolerates int
	// Next is the step the autopilot takes next, nil for none.
	Next *Action
}

// State is what the autopilot saw in its last look in this term: nothing on a
// server that does not lead. Look sees on any.
func (a *Autopilot) State() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Look asks every server and returns what it sees, on any server, in at most a
// second. It changes nothing.
func (a *Autopilot) Look(ctx context.Context) (Status, error) {
	servers, stats, err := a.look(ctx, true)
	if err != nil {
		return Status{}, err
	}
	now := time.Now()
	status := report(servers, plan(servers, a.policy, now), now)
	for i, s := range status.Servers {
		status.Servers[i].LastContact = -1
		if st, ok := stats[s.ID]; ok {
			status.Servers[i].LastContact = st.LastContact
		}
	}
	return status, nil
}

func (a *Autopilot) keep(servers []ServerView, d Decision, now time.Time) {
	status := report(servers, d, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = status
}

// report is pure.
func report(servers []ServerView, d Decision, now time.Time) Status {
	out := Status{At: now, Tolerates: d.Tolerates, Next: d.Action}
	for _, s := range servers {
		part := Learns
		switch {
		case s.Leader:
			part, out.Leader = Leads, s.ID
		case s.Voter:
			part = Votes
		}
		if s.Voter {
			out.Voters++
		}
		contact := time.Duration(0)
		if !s.Contact {
			contact = -1
		}
		out.Servers = append(out.Servers, ServerStatus{
			ID: s.ID, Name: s.Name, Part: part, Healthy: s.Healthy, Gossip: s.Gossip, Lag: s.Lag,
			LastContact: contact, Since: s.Since, Waits: d.Waits[s.ID],
		})
	}
	rank := map[Part]int{Leads: 0, Votes: 1, Learns: 2}
	slices.SortFunc(out.Servers, func(a, b ServerStatus) int {
		return cmp.Or(cmp.Compare(rank[a.Part], rank[b.Part]), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	return out
}
