package etcd

import (
	"github.com/balsahq/balsa/raftstore"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// responseBytes is the approximate size of an answer with events from which the next revision goes into a new answer.
const responseBytes = 1 << 20

// batch converts events of the store to answers. It reuses its buffers, because a message is marshalled when Send returns.
type batch struct {
	events []mvccpb.Event
	kvs    []mvccpb.KeyValue
	list   []*mvccpb.Event
	header pb.ResponseHeader
	answer pb.WatchResponse
}

// send sends the events of b that w's filters admit: complete revisions in each answer, or parts of a revision if the
// client accepts fragments.
func (o *batch) send(s *watchStream, w *watch, b raftstore.WatchBatch) error {
	defer o.release()
	list := o.convert(s.space, w, b.Events)
	for len(list) > 0 {
		n := firstPart(list)
		rev := list[n-1].Kv.ModRevision
		if n == len(list) {
			rev = b.Revision
		}
		if err := o.part(s, w, list[:n], rev); err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

func (o *batch) convert(space keyspace, w *watch, events []raftstore.Event) []*mvccpb.Event {
	if n := len(events); cap(o.events) < n {
		o.events, o.list = make([]mvccpb.Event, n), make([]*mvccpb.Event, 0, n)
		o.kvs = make([]mvccpb.KeyValue, 2*n)
	}
	o.events, o.kvs = o.events[:cap(o.events)], o.kvs[:cap(o.kvs)]
	list, kvs := o.list[:0], o.kvs
	for i := range events {
		e := &events[i]
		gone := e.Type == raftstore.EventDelete
		if gone && w.noDelete || !gone && w.noPut {
			continue
		}
		out := &o.events[len(list)]
		*out = mvccpb.Event{Kv: &kvs[0]}
		space.fill(out.Kv, e.KV)
		if gone {
			out.Type = mvccpb.DELETE
		}
		if w.prevKV && e.Prev != nil {
			out.PrevKv = &kvs[1]
			space.fill(out.PrevKv, e.Prev)
		}
		list, kvs = append(list, out), kvs[2:]
	}
	o.list = list
	return list
}

// release drops the references to keys and values. It also drops a buffer that a burst has made large.
func (o *batch) release() {
	if cap(o.events) > 1024 {
		*o = batch{}
		return
	}
	clear(o.events[:len(o.list)])
	clear(o.kvs[:2*len(o.list)])
	clear(o.list)
}

// firstPart returns how many events of list go into one answer: complete revisions, at least one, up to responseBytes.
func firstPart(list []*mvccpb.Event) int {
	size := 0
	for i, e := range list {
		if size > responseBytes && e.Kv.ModRevision != list[i-1].Kv.ModRevision {
			return i
		}
		size += eventSize(e)
	}
	return len(list)
}

func eventSize(e *mvccpb.Event) int {
	n := len(e.Kv.Key) + len(e.Kv.Value) + 64
	if e.PrevKv != nil {
		n += len(e.PrevKv.Key) + len(e.PrevKv.Value) + 64
	}
	return n
}

// part sends the events of one answer, in fragments when they are too large
// for one message and the client puts them together again.
func (o *batch) part(s *watchStream, w *watch, list []*mvccpb.Event, rev int64) error {
	s.Server.header(&o.header, rev)
	for {
		n := len(list)
		if w.fragment {
			n = fragment(list, s.cfg.MaxRequestBytes)
		}
		o.answer = pb.WatchResponse{Header: &o.header, WatchId: w.id, Events: list[:n], Fragment: n < len(list)}
		if err := s.stream.Send(&o.answer); err != nil {
			return err
		}
		if list = list[n:]; len(list) == 0 {
			return nil
		}
	}
}

// fragment returns how many events of list fit into limit bytes, at least one.
func fragment(list []*mvccpb.Event, limit int) int {
	size := 0
	for i, e := range list {
		if size += eventSize(e); size > limit && i > 0 {
			return i
		}
	}
	return len(list)
}
