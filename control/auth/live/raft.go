package live

import "github.com/balsahq/balsa/raftstore"

// FromRaft answers from the newest state applied here.
func FromRaft(store *raftstore.Store) func() Snapshot {
	return func() Snapshot { return raftView{store.View()} }
}

type raftView struct{ view *raftstore.View }

func (v raftView) Revision() int64 { return v.view.Revision() }

func (v raftView) Get(key string) ([]byte, int64, bool) {
	kv := v.view.Get(key)
	if kv == nil {
		return nil, 0, false
	}
	return kv.Value, kv.ModRevision, true
}

func (v raftView) Scan(prefix string, fn func(key string, value []byte, modRevision int64) bool) {
	v.view.Ascend(prefix, raftstore.PrefixEnd(prefix), func(kv *raftstore.KeyValue) bool {
		return fn(kv.Key, kv.Value, kv.ModRevision)
	})
}
