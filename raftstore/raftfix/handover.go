package raftfix

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// catchUpPause is the delay before a server that lacks entries is asked for them again.
const catchUpPause = 5 * time.Millisecond

// Handover moves the leadership to another voter.
//
// Upstream: after two LeadershipTransfers in one term to a server that does not answer, the goroutine of one waits for room in a
// queue that nothing reads any more (raft.leadershipTransfer, triggerDeferErrorCh).
//
// Consequence: the server refuses every write from then on, in later terms too.
//
// Transfer asks the heirs for the last entry by messages of its own and sends TimeoutNow to the first that has it. Seed 2084 of
// TestSeedsThatFailedOnce shows it.
type Handover struct {
	server *Server
	active atomic.Bool
}

// NewHandover returns the Handover of a server.
func NewHandover(s *Server) *Handover { return &Handover{server: s} }

// Active reports whether a transfer is under way. The leader must not append meanwhile, or no heir ever has the last entry.
func (h *Handover) Active() bool { return h.active.Load() }

// Transfer makes the voter `to` lead, or the first voter that has the whole log when `to` is empty. It returns nil when this
// server does not lead any more, and ErrUnreachable when no heir took over within two election timeouts.
func (h *Handover) Transfer(ctx context.Context, to string) error {
	s, t := h.server, h.server.Term()
	if !t.Here {
		return errdefs.ErrNotLeader
	}
	heirs := s.Voters(s.ID)
	if to != "" {
		if !slices.Contains(heirs, to) {
			return fmt.Errorf("%w: server %s is no other voter", errdefs.ErrInvalid, to)
		}
		heirs = []string{to}
	}
	if len(heirs) == 0 {
		return fmt.Errorf("%w: there is no other voter", errdefs.ErrUnreachable)
	}
	if !h.active.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: leadership is being handed over already", errdefs.ErrUnreachable)
	}
	defer h.active.Store(false)
	bounded, cancel := context.WithTimeout(ctx, 2*s.Raft.ReloadableConfig().ElectionTimeout)
	defer cancel()
	if heir := h.caughtUp(bounded, t, heirs); heir != "" {
		req := &raft.TimeoutNowRequest{RPCHeader: s.emptyAppend(t.Number).RPCHeader}
		// The error says little: an answer can be lost after the heir stood for election. The end of the term is awaited.
		_ = s.Transport.TimeoutNow(raft.ServerID(heir), raft.ServerAddress(heir), req, &raft.TimeoutNowResponse{})
	}
	for {
		changed := s.LeaderChanged()
		if now := s.Term(); !now.Here || now.Number != t.Number {
			return nil
		}
		select {
		case <-changed:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: leadership stays here, no voter took it in time", errdefs.ErrUnreachable)
		case <-s.Closed:
			return errdefs.ErrClosed
		}
	}
}

// caughtUp returns the first heir whose log is as long as this leader's, "" when none is before ctx ends.
func (h *Handover) caughtUp(ctx context.Context, t Term, heirs []string) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan string, len(heirs))
	for _, id := range heirs {
		h.server.Spawn(func() {
			if h.catchesUp(ctx, t, id) {
				found <- id
			}
		})
	}
	select {
	case id := <-found:
		return id
	case <-ctx.Done():
	case <-h.server.Closed:
	}
	return ""
}

// catchesUp asks server id for the last entry until it has it. It returns false when the term or ctx ends first.
func (h *Handover) catchesUp(ctx context.Context, t Term, id string) bool {
	s := h.server
	for s.Term() == t {
		last := s.Raft.LastIndex()
		req := s.emptyAppend(t.Number)
		// The last entry is of this term: every leader begins with an entry of its own term.
		req.PrevLogEntry, req.PrevLogTerm = last, t.Number
		var resp raft.AppendEntriesResponse
		err := s.Transport.AppendEntries(raft.ServerID(id), raft.ServerAddress(id), req, &resp)
		if err == nil && resp.Success && s.Raft.LastIndex() == last {
			return true
		}
		select {
		case <-time.After(catchUpPause):
		case <-ctx.Done():
			return false
		case <-s.Closed:
			return false
		}
	}
	return false
}
