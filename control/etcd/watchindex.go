package etcd

import (
	"context"
	"errors"
	"sync"

	"github.com/balsahq/balsa/raftstore"
)

// watchIndex finds the watches whose range contains a key. It holds no events: a found watch is only told that its cursor
// has events.
type watchIndex struct {
	mu       sync.RWMutex
	keys     map[string]*place // watches of one key
	prefixes map[string]*place // RangeEnd = PrefixEnd(Key)
	lengths  map[int]int       // length of a watched prefix → places of that length
	ranges   map[span]*place   // any other range
}

type span struct{ start, end string }

// place holds the watches of one range.
type place struct{ watches []*watch }

func newWatchIndex() *watchIndex {
	return &watchIndex{
		keys:     make(map[string]*place),
		prefixes: make(map[string]*place),
		lengths:  make(map[int]int),
		ranges:   make(map[span]*place),
	}
}

func isPrefix(start, end string) bool { return end == raftstore.PrefixEnd(start) }

func (x *watchIndex) add(w *watch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.find(w.start, w.end)
	if p == nil {
		p = new(place)
		switch {
		case w.end == "":
			x.keys[w.start] = p
		case isPrefix(w.start, w.end):
			x.prefixes[w.start] = p
			x.lengths[len(w.start)]++
		default:
			x.ranges[span{w.start, w.end}] = p
		}
	}
	w.at = len(p.watches)
	p.watches = append(p.watches, w)
}

func (x *watchIndex) find(start, end string) *place {
	switch {
	case end == "":
		return x.keys[start]
	case isPrefix(start, end):
		return x.prefixes[start]
	}
	return x.ranges[span{start, end}]
}

func (x *watchIndex) remove(w *watch) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.find(w.start, w.end)
	last := len(p.watches) - 1
	p.watches[w.at] = p.watches[last]
	p.watches[w.at].at = w.at
	p.watches[last] = nil
	p.watches = p.watches[:last]
	if last > 0 {
		return
	}
	switch {
	case w.end == "":
		delete(x.keys, w.start)
	case isPrefix(w.start, w.end):
		delete(x.prefixes, w.start)
		if n := len(w.start); x.lengths[n] == 1 {
			delete(x.lengths, n)
		} else {
			x.lengths[n]--
		}
	default:
		delete(x.ranges, span{w.start, w.end})
	}
}

// tell wakes the watches whose ranges contain the events.
func (x *watchIndex) tell(events []raftstore.Event) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := range events {
		key := events[i].KV.Key
		x.keys[key].ready()
		for n := range x.lengths {
			if n <= len(key) {
				x.prefixes[key[:n]].ready()
			}
		}
		for r, p := range x.ranges {
			if r.start <= key && key < r.end {
				p.ready()
			}
		}
	}
}

// tellAll wakes every watch.
func (x *watchIndex) tellAll() {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for _, p := range x.keys {
		p.ready()
	}
	for _, p := range x.prefixes {
		p.ready()
	}
	for _, p := range x.ranges {
		p.ready()
	}
}

func (p *place) ready() {
	if p == nil {
		return
	}
	for _, w := range p.watches {
		w.stream.push(w)
	}
}

// dispatch reads the events of the whole key space and wakes the matching watches, until ctx ends or the store closes.
func (s *Server) dispatch(ctx context.Context) error {
	for ctx.Err() == nil {
		cursor, err := s.store.Watch(raftstore.WatchRequest{Key: s.space.prefix, RangeEnd: s.space.end})
		if errors.Is(err, raftstore.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		// The watches' own cursors find the events since the last cursor ended.
		s.index.tellAll()
		err = s.follow(ctx, cursor)
		cursor.Close()
		if errors.Is(err, raftstore.ErrClosed) {
			return nil
		}
	}
	return nil
}

// follow returns when the cursor, or ctx, ends.
func (s *Server) follow(ctx context.Context, cursor *raftstore.Watcher) error {
	for {
		b, err := cursor.Next(ctx)
		if err != nil {
			return err
		}
		s.index.tell(b.Events)
	}
}
