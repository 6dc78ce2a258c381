package raftlog

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
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// boltFile is hashicorp/raft-boltdb with a checksum in every entry's Extensions and behind every stored value, because bbolt has
// checksums on its two meta pages only.
type boltFile struct {
	*raftboltdb.BoltStore
	path string
}

// openBolt opens or makes the bbolt file at path, having read all of it.
func openBolt(path string) (File, error) {
	if st, err := os.Stat(path); err == nil && st.Size() > 0 {
		if err := scrub(path); err != nil {
			return nil, err
		}
	}
	store, err := raftboltdb.New(raftboltdb.Options{Path: path, BoltOptions: &bbolt.Options{
		Timeout:        time.Second,
		NoFreelistSync: true, // a damaged free list could overwrite live pages
		FreelistType:   bbolt.FreelistMapType,
	}})
	if err != nil {
		return nil, err
	}
	return boltFile{store, path}, nil
}

// Checked implements File.
func (b boltFile) Checked() bool { return false }

// StoreLogs implements File.
func (b boltFile) StoreLogs(logs []*raft.Log) error {
	sealed := make([]*raft.Log, len(logs))
	for i, l := range logs {
		own := *l
		own.Extensions = binary.BigEndian.AppendUint32(bytes.Clone(l.Extensions), entrySum(l, l.Extensions))
		sealed[i] = &own
	}
	return b.BoltStore.StoreLogs(sealed)
}

// GetLog implements File.
func (b boltFile) GetLog(index uint64, l *raft.Log) error {
	var found raft.Log
	if err := b.BoltStore.GetLog(index, &found); err != nil {
		return err
	}
	n := len(found.Extensions) - 4
	if n < 0 || found.Index != index || binary.BigEndian.Uint32(found.Extensions[n:]) != entrySum(&found, found.Extensions[:n]) {
		return fmt.Errorf("%w: it does not match its checksum", errdefs.ErrCorrupt)
	}
	if found.Extensions = found.Extensions[:n:n]; n == 0 {
		found.Extensions = nil
	}
	*l = found
	return nil
}

// entrySum is the checksum of everything Raft relies on in an entry.
func entrySum(l *raft.Log, extensions []byte) uint32 {
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 32), l.Index)
	head = binary.BigEndian.AppendUint64(head, l.Term)
	head = binary.BigEndian.AppendUint64(append(head, byte(l.Type)), uint64(len(extensions)))
	sum := crc32.Update(crc32.Checksum(head, diskfile.Castagnoli), diskfile.Castagnoli, extensions)
	return crc32.Update(sum, diskfile.Castagnoli, l.Data)
}

// Set implements File.
func (b boltFile) Set(k, v []byte) error {
	return b.BoltStore.Set(k, binary.BigEndian.AppendUint32(bytes.Clone(v), valueSum(k, v)))
}

// Get implements File.
func (b boltFile) Get(k []byte) ([]byte, error) {
	sealed, err := b.BoltStore.Get(k)
	if err != nil {
		return nil, err
	}
	return unsealValue(b.path, k, sealed)
}

// unsealValue returns the value that Set was given, without its checksum.
func unsealValue(path string, k, sealed []byte) ([]byte, error) {
	n := len(sealed) - 4
	if n < 0 || binary.BigEndian.Uint32(sealed[n:]) != valueSum(k, sealed[:n]) {
		return nil, diskfile.Corrupt(path, fmt.Errorf("%q does not match its checksum", k))
	}
	return sealed[:n:n], nil
}

func valueSum(k, v []byte) uint32 {
	return crc32.Update(crc32.Checksum(k, diskfile.Castagnoli), diskfile.Castagnoli, v)
}

// boltValues is the bucket in which raft-boltdb keeps the values of Set.
const boltValues = "conf"

// scrub reads every reachable page of a bbolt file, before bbolt opens it for writing: bbolt then walks the pages in a goroutine
// of its own, where its panic at damage could not be caught. The caller recovers panics.
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
				return fmt.Errorf("bucket %q is no bucket", name)
			}
			last := []byte(nil)
			return b.ForEach(func(k, v []byte) error {
				if last != nil && bytes.Compare(last, k) >= 0 {
					return fmt.Errorf("keys of bucket %q are out of order", name)
				}
				if v == nil {
					return fmt.Errorf("bucket %q holds another bucket", name)
				}
				last = k
				if string(name) == boltValues {
					_, err := unsealValue(path, k, v)
					return err
				}
				sum += valueSum(k, v) // reads every byte
				return nil
			})
		})
	})
}

// Offsets in a bbolt file (its internal/common/meta.go): two meta pages, each with a page header and the meta data, which ends in
// its FNV-1a sum.
const (
	boltPageHeader = 16
	boltMetaSum    = 56
	boltMagic      = 0xED0CDAED
)

// checkMetaPages returns an error unless both meta pages are sound. bbolt is content with one, which holds the state before the
// last commit: an acknowledged write would be gone without an error. A meta page fits a disk sector, so a power cut leaves it
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
