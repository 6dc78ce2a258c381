package raftstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"io"
	"math"
	"os"
	"time"

	"github.com/hashicorp/raft"
	"go.etcd.io/bbolt"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/mvcc"
	"github.com/balsahq/balsa/raftstore/wal"
)

// boltLog is Raft's log and stable store in one bbolt file. Unlike raft-boltdb
// it sums up every entry and value, and keeps the index of the last entry
// beside the log in the same transaction, because bbolt itself has checksums
// on its two meta pages only and a damaged page could otherwise hide entries.
//
//	bucket "log":   index (8 bytes, big endian) → entry, CRC-32C
//	bucket "state": Raft's keys, and "tail"     → value, CRC-32C
type boltLog struct {
	db   *bbolt.DB
	path string
}

var (
	bucketLog   = []byte("log")
	bucketState = []byte("state")
	keyTail     = []byte("tail")
)

// openBoltLog opens or makes path. The file must have passed scrub.
func openBoltLog(path string) (*boltLog, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		Timeout:        time.Second,
		NoFreelistSync: true, // a damaged free list could overwrite live pages
		FreelistType:   bbolt.FreelistMapType,
	})
	if err != nil {
		return nil, err
	}
	b := &boltLog{db: db, path: path}
	if err := b.prepare(); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return b, nil
}

// prepare makes the buckets of a new file; it does not write to an old one.
func (b *boltLog) prepare() error {
	missing := false
	err := b.db.View(func(tx *bbolt.Tx) error {
		missing = tx.Bucket(bucketLog) == nil || tx.Bucket(bucketState) == nil
		return nil
	})
	if err != nil || !missing {
		return err
	}
	return b.db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{bucketLog, bucketState} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func sealed(key, b []byte) []byte {
	sum := crc32.Update(crc32.Checksum(key, diskfile.Castagnoli), diskfile.Castagnoli, b)
	return binary.BigEndian.AppendUint32(b, sum)
}

// unseal returns what sealed was given for key. It does not copy.
func unseal(key, b []byte) ([]byte, bool) {
	n := len(b) - 4
	if n < 0 {
		return nil, false
	}
	sum := crc32.Update(crc32.Checksum(key, diskfile.Castagnoli), diskfile.Castagnoli, b[:n])
	return b[:n:n], binary.BigEndian.Uint32(b[n:]) == sum
}

func indexKey(index uint64) []byte { return binary.BigEndian.AppendUint64(nil, index) }

// appendLog encodes l.
func appendLog(b []byte, l *raft.Log) []byte {
	b = append(binary.AppendUvarint(b, l.Term), byte(l.Type))
	var at int64
	if !l.AppendedAt.IsZero() {
		at = l.AppendedAt.UnixNano()
	}
	b = mvcc.AppendBytes(binary.AppendVarint(b, at), l.Extensions)
	return append(b, l.Data...)
}

// decodeLog reads what appendLog wrote. The entry does not share b.
func decodeLog(index uint64, b []byte, l *raft.Log) error {
	p := mvcc.Parser{Rest: b}
	*l = raft.Log{Index: index, Term: p.Uvarint(), Type: raft.LogType(p.Byte())}
	if at := p.Varint(); at != 0 {
		l.AppendedAt = time.Unix(0, at)
	}
	l.Extensions = bytes.Clone(p.Bytes())
	l.Data = bytes.Clone(p.Rest)
	return p.Err
}

func (b *boltLog) edge(find func(*bbolt.Cursor) ([]byte, []byte)) (index uint64, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		if k, _ := find(tx.Bucket(bucketLog).Cursor()); len(k) == 8 {
			index = binary.BigEndian.Uint64(k)
		}
		return nil
	})
	return index, err
}

// FirstIndex is the index of the first entry, 0 when there is none.
func (b *boltLog) FirstIndex() (uint64, error) { return b.edge((*bbolt.Cursor).First) }

// LastIndex is the index of the last entry, 0 when there is none.
func (b *boltLog) LastIndex() (uint64, error) { return b.edge((*bbolt.Cursor).Last) }

// tail is the index the last entry must have. It checks all that is kept beside
// the log, because a peer that forgot its term or its vote could vote twice.
func (b *boltLog) Tail() (index uint64, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketState).ForEach(func(k, v []byte) error {
			body, ok := unseal(k, v)
			if !ok {
				return fmt.Errorf("%q does not match its checksum", k)
			}
			if bytes.Equal(k, keyTail) && len(body) == 8 {
				index = binary.BigEndian.Uint64(body)
			}
			return nil
		})
	})
	return index, err
}

// GetLog reads one entry.
func (b *boltLog) GetLog(index uint64, l *raft.Log) error {
	return b.db.View(func(tx *bbolt.Tx) error {
		key := indexKey(index)
		v := tx.Bucket(bucketLog).Get(key)
		if v == nil {
			return raft.ErrLogNotFound
		}
		body, ok := unseal(key, v)
		if !ok {
			return fmt.Errorf("%w: it does not match its checksum", ErrCorrupt)
		}
		return decodeLog(index, body, l)
	})
}

// StoreLogs writes entries in one synced transaction.
func (b *boltLog) StoreLogs(logs []*raft.Log) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketLog)
		bucket.FillPercent = 0.9 // appended to, never inserted into
		for _, l := range logs {
			key := indexKey(l.Index)
			if err := bucket.Put(key, sealed(key, appendLog(make([]byte, 0, len(l.Data)+len(l.Extensions)+32), l))); err != nil {
				return err
			}
		}
		return putTail(tx)
	})
}

func putTail(tx *bbolt.Tx) error {
	k, _ := tx.Bucket(bucketLog).Cursor().Last()
	if k == nil {
		k = indexKey(0)
	}
	return tx.Bucket(bucketState).Put(keyTail, sealed(keyTail, bytes.Clone(k)))
}

// deleteChunk bounds how many entries one transaction removes, so that dropping
// old log after a snapshot does not hold up writes.
const deleteChunk = 256

// DeleteRange removes the entries lo to hi, both included.
func (b *boltLog) DeleteRange(lo, hi uint64) error {
	for lo <= hi {
		end := min(lo+deleteChunk-1, hi)
		if err := b.deleteSome(lo, end); err != nil {
			return err
		}
		lo = end + 1
	}
	return nil
}

func (b *boltLog) deleteSome(lo, hi uint64) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket(bucketLog)
		for i := lo; i <= hi; i++ {
			if err := bucket.Delete(indexKey(i)); err != nil {
				return err
			}
		}
		return putTail(tx)
	})
}

// Set keeps v under k.
func (b *boltLog) Set(k, v []byte) error {
	return b.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketState).Put(k, sealed(k, bytes.Clone(v)))
	})
}

// Get returns what Set kept.
func (b *boltLog) Get(k []byte) (v []byte, err error) {
	err = b.db.View(func(tx *bbolt.Tx) error {
		raw := tx.Bucket(bucketState).Get(k)
		if raw == nil {
			return wal.ErrNotFound
		}
		body, ok := unseal(k, raw)
		if !ok {
			return diskfile.Corrupt(b.path, fmt.Errorf("%q does not match its checksum", k))
		}
		v = append([]byte{}, body...)
		return nil
	})
	return v, err
}

// stable returns everything Set kept.
func (b *boltLog) stable() (map[string][]byte, error) {
	all := map[string][]byte{}
	err := b.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketState).ForEach(func(k, v []byte) error {
			if body, ok := unseal(k, v); ok && !bytes.Equal(k, keyTail) {
				all[string(k)] = bytes.Clone(body)
			}
			return nil
		})
	})
	return all, err
}

func (b *boltLog) Close() error { return b.db.Close() }

// scrub reads all of a bbolt file that is reachable, before bbolt gets it for
// writing: bbolt walks the pages in a goroutine of its own, where a panic, its
// answer to damage, could not be caught. It must be called under guard.
func scrub(path string) error {
	if err := checkMetaPages(path); err != nil {
		return err
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, ReadOnly: true})
	if err != nil {
		return err
	}
	defer db.Close()
	var sum uint32
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			if b == nil {
				return fmt.Errorf("bucket %q is none", name)
			}
			last := []byte(nil)
			return b.ForEach(func(k, v []byte) error {
				if last != nil && bytes.Compare(last, k) >= 0 {
					return fmt.Errorf("keys of bucket %q are out of order", name)
				}
				if v == nil {
					return fmt.Errorf("bucket %q holds another", name)
				}
				last = k
				sum = crc32.Update(crc32.Update(sum, diskfile.Castagnoli, k), diskfile.Castagnoli, v)
				return nil
			})
		})
	})
}

// Offsets in a bbolt file (its internal/common/meta.go): two meta pages, each
// a page header and the meta data, which ends in its FNV-1a sum.
const (
	boltPageHeader = 16
	boltMetaSum    = 56
	boltMagic      = 0xED0CDAED
)

// checkMetaPages expects both meta pages to be sound. bbolt makes do with one,
// which is the state before the last commit: an acknowledged write would be
// gone without a word. A meta page fits a disk sector, so a power cut leaves it
// either old or new.
func checkMetaPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	page := int64(os.Getpagesize())
	for i := range int64(2) {
		b := make([]byte, boltMetaSum+8)
		if _, err := f.ReadAt(b, i*page+boltPageHeader); err != nil {
			if errors.Is(err, io.EOF) {
				return mvcc.ErrShort
			}
			return err
		}
		h := fnv.New64a()
		h.Write(b[:boltMetaSum])
		if binary.NativeEndian.Uint32(b) != boltMagic || binary.NativeEndian.Uint64(b[boltMetaSum:]) != h.Sum64() {
			return fmt.Errorf("meta page %d is damaged", i)
		}
		if size := int64(binary.NativeEndian.Uint32(b[8:])); i == 0 && size >= 512 && size <= math.MaxUint16+1 {
			page = size
		}
	}
	return nil
}
