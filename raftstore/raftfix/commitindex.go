package raftfix

import (
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// CommitNotifier sends the leader's commit index to the other servers at once.
//
// Upstream: a follower learns of a commit with the next entry, or after CommitTimeout.
//
// Consequence: a client that writes through a follower, or watches there, waits for a timer and not for the network.
//
// The message is an AppendEntries without entries whose previous entry is the committed one: a follower that does not have that
// very entry refuses it, so it never commits another. TestEveryPeerTakesWritesAndReadsThem shows it.
type CommitNotifier struct {
	server *Server

	mu    sync.Mutex
	links map[raft.ServerID]*commitLink
}

// NewCommitNotifier returns the CommitNotifier of a server.
func NewCommitNotifier(s *Server) *CommitNotifier {
	return &CommitNotifier{server: s, links: make(map[raft.ServerID]*commitLink)}
}

// commitLink holds the newest commit index that one server has not been sent. At most one message to it is under way.
type commitLink struct {
	id raft.ServerID

	mu      sync.Mutex
	news    commit // index 0: nothing to send
	sending bool
}

// commit is a committed entry and the term of the leader that sends it.
type commit struct{ index, term, leaderTerm uint64 }

// Notify sends the other servers that the log is committed up to entry number index, which is of the given term. It returns at
// once, and does nothing when this server does not lead.
func (n *CommitNotifier) Notify(index, term uint64) {
	t := n.server.Term()
	if !t.Here {
		return
	}
	for _, s := range n.server.Raft.GetConfiguration().Configuration().Servers {
		if string(s.ID) != n.server.ID {
			n.link(s.ID).set(n.server, commit{index, term, t.Number})
		}
	}
}

func (n *CommitNotifier) link(id raft.ServerID) *commitLink {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.links[id]
	if l == nil {
		l = &commitLink{id: id}
		n.links[id] = l
	}
	return l
}

func (l *commitLink) set(s *Server, c commit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.news = c
	if !l.sending {
		l.sending = s.Spawn(func() { l.send(s) })
	}
}

// resendMin and resendMax bound the delay before a commit index is sent again to a follower that did not have the entry yet;
// resendTimes is how often. Together they last about as long as Raft's CommitTimeout.
const (
	resendMin, resendMax = time.Millisecond, 16 * time.Millisecond
	resendTimes          = 40
)

// send sends as long as there is something new. The commit index can overtake its entry on the way to a server that is slower
// than a majority; that server refuses, and is sent the index again.
func (l *commitLink) send(s *Server) {
	wait, tries := resendMin, 0
	for {
		l.mu.Lock()
		c := l.news
		l.news = commit{}
		if c.index == 0 {
			l.sending = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		req := s.emptyAppend(c.leaderTerm)
		req.PrevLogEntry, req.PrevLogTerm, req.LeaderCommitIndex = c.index, c.term, c.index
		var resp raft.AppendEntriesResponse
		err := s.Transport.AppendEntries(l.id, raft.ServerAddress(l.id), req, &resp)
		if err != nil || resp.Success || resp.Term != c.leaderTerm || tries == resendTimes || !s.pause(wait) {
			wait, tries = resendMin, 0
			continue
		}
		wait, tries = min(2*wait, resendMax), tries+1
		l.mu.Lock()
		if l.news.index == 0 {
			l.news = c
		} else {
			tries = 0 // a newer commit index is sent instead
		}
		l.mu.Unlock()
	}
}
