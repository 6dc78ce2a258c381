package raftlog

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// CommitMark keeps the commit index on disk, so that a server that starts shows the state it had shown before, without waiting
// for a leader. Raft keeps the commit index in memory only. (Its own RestoreCommittedLogs forgets changes of the configuration
// that it restores, and stops at 65,536 entries.)
//
// It is written with each batch that is applied and never synced. The entries below it are synced, so a mark that is older
// after a power cut only shows less than it could.
type CommitMark struct {
	f *os.File
}

// CommitMarkName is the name of the mark's file in the data directory.
const CommitMarkName = "commit"

// OpenCommitMark opens or makes the mark in dir and returns the index it holds, 0 when it is missing or damaged.
func OpenCommitMark(dir string) (*CommitMark, uint64, error) {
	path := filepath.Join(dir, CommitMarkName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, diskfile.Error(path, err)
	}
	b := make([]byte, 12)
	n, _ := f.ReadAt(b, 0) // a short or damaged mark counts as 0
	return &CommitMark{f}, decodeCommitMark(b[:n]), nil
}

// readCommitMark returns the index that the mark in dir holds, 0 when it is missing or damaged.
func readCommitMark(dir string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, CommitMarkName))
	if err != nil {
		return 0
	}
	return decodeCommitMark(b)
}

// decodeCommitMark reads an index (8 bytes) and its checksum (4 bytes).
func decodeCommitMark(b []byte) uint64 {
	if len(b) != 12 || binary.BigEndian.Uint32(b[8:]) != crc32.Checksum(b[:8], diskfile.Castagnoli) {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// Set writes that every entry up to index is committed. It returns no error: the log's next write reports a disk that refuses.
// A nil CommitMark, of a store in memory, writes nothing.
func (c *CommitMark) Set(index uint64) {
	if c == nil {
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 12), index)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, diskfile.Castagnoli))
	_, _ = c.f.WriteAt(b, 0)
}

// Close closes the mark's file.
func (c *CommitMark) Close() error {
	if c == nil {
		return nil
	}
	return c.f.Close()
}
