package etcd

import (
	"context"
	"sync"
	"time"
)

// leaderless records whether this server has been without a leader for too long to serve clients that require one.
type leaderless struct {
	mu   sync.Mutex
	flag bool
	gone chan struct{} // closed when flag becomes true
}

func (l *leaderless) reset() { l.gone = make(chan struct{}) }

func (l *leaderless) set(flag bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case flag && !l.flag:
		close(l.gone)
	case !flag && l.flag:
		l.gone = make(chan struct{})
	}
	l.flag = flag
}

func (l *leaderless) now() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flag
}

// lost returns a channel that is closed when there has been no leader for too long; nil for a client that does not require
// a leader.
func (l *leaderless) lost(ctx context.Context) <-chan struct{} {
	if !demandsLeader(ctx) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gone
}

// watchLeader keeps s.lonely current until ctx ends.
func (s *Server) watchLeader(ctx context.Context) {
	grace := time.NewTimer(s.cfg.LeaderGrace)
	defer grace.Stop()
	waiting := true // the timer runs: from the last moment there was a leader
	for {
		changed := s.store.LeaderChanged()
		switch id, _ := s.store.Leader(); {
		case id != "":
			grace.Stop()
			waiting = false
			s.lonely.set(false)
		case !waiting: // terms may pass without a leader: the time counts from the first
			waiting = true
			grace.Reset(s.cfg.LeaderGrace)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-grace.C:
			s.lonely.set(true)
		}
	}
}
