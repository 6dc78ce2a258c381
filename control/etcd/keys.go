package etcd

import (
	"unsafe"

	"github.com/balsahq/balsa/raftstore"
	"go.etcd.io/etcd/api/v3/mvccpb"
)

// keyspace maps the keys of etcd's clients to those of the store and back. A
// client's key k is prefix+k; no request reaches a key that does not begin with
// prefix.
type keyspace struct {
	prefix string
	end    string // RangeEnd of the whole key space
}

func newKeyspace(prefix string) keyspace {
	return keyspace{prefix: prefix, end: raftstore.PrefixEnd(prefix)}
}

// key returns the store's key of a client's key.
func (s keyspace) key(k []byte) string { return s.prefix + string(k) }

// span maps a range of etcd: an empty end means one key, "\x00" all keys from key on, any other end the range [key, end).
func (s keyspace) span(key, end []byte) (start, stop string) {
	switch {
	case len(end) == 0:
		return s.key(key), ""
	case len(end) == 1 && end[0] == 0:
		if len(key) == 1 && key[0] == 0 {
			return s.prefix, s.end // a prefix, which the store watches most cheaply
		}
		return s.key(key), s.end
	}
	return s.key(key), s.key(end)
}

// client returns the client's key of a key in the store. The bytes share the string's memory, because they are only
// marshalled.
func (s keyspace) client(k string) []byte {
	k = k[len(s.prefix):]
	return unsafe.Slice(unsafe.StringData(k), len(k))
}

// fill writes from into to. The value is shared with the store.
func (s keyspace) fill(to *mvccpb.KeyValue, from *raftstore.KeyValue) {
	to.Key = s.client(from.Key)
	to.Value = from.Value
	to.CreateRevision = from.CreateRevision
	to.ModRevision = from.ModRevision
	to.Version = from.Version
	to.Lease = int64(from.Lease)
}

// list converts key values with two allocations in total.
func (s keyspace) list(from []*raftstore.KeyValue, keysOnly bool) []*mvccpb.KeyValue {
	if len(from) == 0 {
		return nil
	}
	kvs, out := make([]mvccpb.KeyValue, len(from)), make([]*mvccpb.KeyValue, len(from))
	for i, kv := range from {
		s.fill(&kvs[i], kv)
		if keysOnly {
			kvs[i].Value = nil
		}
		out[i] = &kvs[i]
	}
	return out
}
