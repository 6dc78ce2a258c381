package member

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Part is a server's role in Raft.
type Part string

const (
	Leads  Part = "leader"
	Votes  Part = "voter"
	Learns Part = "learner"
)

// ServerStatus is the state of one server, for people.
type ServerStatus struct {
	ID      string
	Name    string
	Part    Part
	Healthy bool
	// Gossip is the server's state in gossip; "" when gossip does not know it.
	Gossip State
	// Lag is how many entries the server lacks.
	Lag uint64
	// LastContact is the time since the leader's last message to the server; negative when the server did not answer.
	LastContact time.Duration
	// Since is when Healthy changed last, as far as this server has seen.
	Since time.Time
	// Waits is what the server waits for, "" for nothing.
	Waits string
}

// Status is the state of all servers.
type Status struct {
	At      time.Time
	Leader  string
	Servers []ServerStatus // leader, voters, learners, each by name
	// Voters is the number of voters; Tolerates is how many more may die, negative when there is no quorum.
	Voters, Tolerates int
	// Next is the autopilot's next step, nil for none.
	Next *Action
}

// State returns the result of the autopilot's last look in this term. It is empty on a server that does not lead; Look works on any.
func (a *Autopilot) State() Status {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Look asks every server for its state and returns it, on any server, within about a second. It changes nothing.
func (a *Autopilot) Look(ctx context.Context) (Status, error) {
	servers, stats, err := a.look(ctx, askAlways)
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

func (a *Autopilot) setState(servers []ServerView, d Decision, now time.Time) {
	status := report(servers, d, now)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.state = status
}

// report returns the status for people. It is pure.
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
