package raftstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// abreastPause is how soon a peer that is behind is asked again.
const abreastPause = 5 * time.Millisecond

// transfer makes `to` lead, or the first voter that has the whole log, and returns
// when this peer does not lead any more. Meanwhile nothing is appended.
//
// Raft's own way is not taken: after two transfers in one term to a peer that does
// not answer it can refuse every write from then on, in later terms too, because
// the one waits for room in a queue that nobody reads any more
// (raft.leadershipTransfer, triggerDeferErrorCh).
func (c *consensus) transfer(ctx context.Context, to string) error {
	t := c.who()
	if !t.here {
		return ErrNotLeader
	}
	heirs := c.heirs(c.id)
	if to != "" {
		if !slices.Contains(heirs, to) {
			return fmt.Errorf("%w: %s is no other voter", ErrInvalid, to)
		}
		heirs = []string{to}
	}
	if len(heirs) == 0 {
		return fmt.Errorf("%w: there is no other voter", ErrUnreachable)
	}
	if !c.handing.CompareAndSwap(false, true) {
		return fmt.Errorf("%w: leadership is being handed over already", ErrUnreachable)
	}
	defer c.handing.Store(false)
	patience := 2 * c.raft.ReloadableConfig().ElectionTimeout
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if heir := c.abreast(bounded, t, heirs); heir != "" {
		req := &raft.TimeoutNowRequest{RPCHeader: c.message(t.number).RPCHeader}
		// Whether it was heard is seen by what comes of it.
		_ = c.trans.TimeoutNow(raft.ServerID(heir), raft.ServerAddress(heir), req, &raft.TimeoutNowResponse{})
	}
	for {
		changed := c.lead.next()
		if now := c.who(); !now.here || now.number != t.number {
			return nil
		}
		select {
		case <-changed:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("%w: leadership stays here, nobody took it in time", ErrUnreachable)
		case <-c.closed:
			return ErrClosed
		}
	}
}

// heirs are the voters but one, in an order that all peers agree on.
func (c *consensus) heirs(except string) []string {
	var out []string
	for _, s := range c.raft.GetConfiguration().Configuration().Servers {
		if s.Suffrage == raft.Voter && string(s.ID) != except {
			out = append(out, string(s.ID))
		}
	}
	slices.Sort(out)
	return out
}

// abreast returns the first of the heirs whose log is as long as this leader's, ""
// when none is before ctx ends.
func (c *consensus) abreast(ctx context.Context, t term, heirs []string) string {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan string, len(heirs))
	for _, id := range heirs {
		c.spawn(func() {
			if c.catchesUp(ctx, t, id) {
				found <- id
			}
		})
	}
	select {
	case id := <-found:
		return id
	case <-ctx.Done():
	case <-c.closed:
	}
	return ""
}

// catchesUp asks a peer for the last entry until it has it.
func (c *consensus) catchesUp(ctx context.Context, t term, id string) bool {
	for c.who() == t {
		last := c.raft.LastIndex()
		req := c.message(t.number)
		// Every leader begins with an entry of its own term.
		req.PrevLogEntry, req.PrevLogTerm = last, t.number
		var resp raft.AppendEntriesResponse
		err := c.trans.AppendEntries(raft.ServerID(id), raft.ServerAddress(id), req, &resp)
		if err == nil && resp.Success && c.raft.LastIndex() == last {
			return true
		}
		select {
		case <-time.After(abreastPause):
		case <-ctx.Done():
			return false
		case <-c.closed:
			return false
		}
	}
	return false
}
