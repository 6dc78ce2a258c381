package etcd

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/balsahq/balsa/raftstore"
	bolt "go.etcd.io/bbolt"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/encoding/protowire"
)

const (
	snapshotChunk  = 32 << 10
	snapshotCommit = 4096 // keys a transaction of the file
)

// Snapshot implements etcdserverpb.MaintenanceServer: the clients' keys and leases as a database file of etcd 3.6, followed
// by its SHA-256, as `etcdctl snapshot save` expects and `etcdutl snapshot restore` reads. It holds the newest version of
// each key, without older revisions. It has no other data of the store; `balsa snapshot save` saves everything.
func (s *maintenanceService) Snapshot(_ *pb.SnapshotRequest, stream pb.Maintenance_SnapshotServer) error {
	ctx := stream.Context()
	if err := s.authorize(ctx); err != nil {
		return err
	}
	if err := s.exclusive(ctx); err != nil {
		return err
	}
	defer s.release()
	v, err := s.newest(ctx, false)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(s.cfg.TempDir, "etcd-snapshot-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "db")
	if err := s.writeDB(ctx, path, v); err != nil {
		return fmt.Errorf("etcd API: snapshot: %w", err)
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return sendFile(stream, f)
}

// sendFile sends a file and then its SHA-256.
func sendFile(stream pb.Maintenance_SnapshotServer, f *os.File) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var (
		left = info.Size()
		sum  hash.Hash
		buf  = make([]byte, snapshotChunk)
	)
	sum = sha256.New()
	for left > 0 {
		n, err := io.ReadFull(f, buf[:min(left, snapshotChunk)])
		if err != nil {
			return err
		}
		left -= int64(n)
		sum.Write(buf[:n])
		// Marshalled when Send returns, so the buffer is free again.
		if err := stream.Send(&pb.SnapshotResponse{RemainingBytes: uint64(left), Blob: buf[:n], Version: "3.6.0"}); err != nil {
			return err
		}
	}
	return stream.Send(&pb.SnapshotResponse{Blob: sum.Sum(nil), Version: "3.6.0"})
}

// writeDB makes a database file of etcd's with the clients' keys of v.
func (s *Server) writeDB(ctx context.Context, path string, v *raftstore.View) (err error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoFreelistSync: true, Timeout: time.Second})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if err := db.Update(func(tx *bolt.Tx) error { return s.writeFrame(tx, v) }); err != nil {
		return err
	}
	// etcd orders its file by revision, and so must what is written, or the
	// file is written many times over.
	var kvs []*raftstore.KeyValue
	v.Ascend(s.space.prefix, s.space.end, func(kv *raftstore.KeyValue) bool {
		kvs = append(kvs, kv)
		return true
	})
	slices.SortFunc(kvs, func(a, b *raftstore.KeyValue) int {
		return cmp.Or(cmp.Compare(a.ModRevision, b.ModRevision), cmp.Compare(a.Key, b.Key))
	})
	w := revisionWriter{space: s.space}
	for part := range slices.Chunk(kvs, snapshotCommit) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := db.Update(func(tx *bolt.Tx) error { return w.write(tx.Bucket([]byte("key")), part) }); err != nil {
			return err
		}
	}
	return nil
}

// writeFrame writes what is in etcd's file beside keys.
func (s *Server) writeFrame(tx *bolt.Tx, v *raftstore.View) error {
	for _, name := range []string{"key", "meta", "lease", "alarm", "cluster", "members", "members_removed", "auth", "authUsers", "authRoles"} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return err
		}
	}
	// Nothing older than v is in the file, and its revision is that of v even
	// when no key is so new. How much of a Raft log is in it is not said: whoever
	// reads the file begins a log of his own.
	compacted := appendRevision(nil, v.Revision(), 0)
	meta := tx.Bucket([]byte("meta"))
	for _, e := range []struct {
		name  string
		value []byte
	}{
		{"scheduledCompactRev", compacted},
		{"finishedCompactRev", compacted},
		{"storageVersion", []byte("3.6.0")},
	} {
		if err := meta.Put([]byte(e.name), e.value); err != nil {
			return err
		}
	}
	leases := tx.Bucket([]byte("lease"))
	for _, l := range s.store.Leases() {
		if !s.owns(v, int64(l.ID)) {
			continue
		}
		b := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), uint64(l.ID))
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(l.TTL/time.Second))
		if err := leases.Put(binary.BigEndian.AppendUint64(nil, uint64(l.ID)), b); err != nil {
			return err
		}
	}
	return nil
}

// appendRevision writes a revision as etcd's file has it: that of the
// transaction, and the number of the change in it.
func appendRevision(b []byte, rev, change int64) []byte {
	b = binary.BigEndian.AppendUint64(b, uint64(rev))
	return binary.BigEndian.AppendUint64(append(b, '_'), uint64(change))
}

// revisionWriter writes keys in the order of their revisions.
type revisionWriter struct {
	space  keyspace
	rev    int64
	change int64 // of the next key of rev
}

func (w *revisionWriter) write(to *bolt.Bucket, kvs []*raftstore.KeyValue) error {
	to.FillPercent = 0.9
	for _, kv := range kvs {
		if kv.ModRevision != w.rev {
			w.rev, w.change = kv.ModRevision, 0
		}
		var out mvccpb.KeyValue
		w.space.fill(&out, kv)
		value, err := out.Marshal()
		if err != nil {
			return err
		}
		if err := to.Put(appendRevision(nil, w.rev, w.change), value); err != nil {
			return err
		}
		w.change++
	}
	return nil
}
