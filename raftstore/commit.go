package raftstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// commitMark remembers how far the log is committed, so that a peer that starts
// shows what it had shown before, and does not have to hear from a leader first.
// Raft keeps this in memory only. (Its own RestoreCommittedLogs forgets changes
// of the configuration that it restores, and stops at 65,536 entries.)
//
// It is written with each batch that is applied and never synced: entries below
// it are, so that an older one, after a power cut, is only less than there could
// be.
type commitMark struct {
	f *os.File
}

const commitFile = "commit"

// openCommitMark opens or makes the mark in dir and returns what it says; 0 when
// it says nothing that can be read.
func openCommitMark(dir string) (*commitMark, uint64, error) {
	path := filepath.Join(dir, commitFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, 0, diskfile.Error(path, err)
	}
	b := make([]byte, 12)
	n, _ := f.ReadAt(b, 0) // a short or damaged one counts for nothing
	return &commitMark{f}, decodeCommitMark(b[:n]), nil
}

// readCommitMark is what the mark in dir says, 0 when there is none.
func readCommitMark(dir string) uint64 {
	b, err := os.ReadFile(filepath.Join(dir, commitFile))
	if err != nil {
		return 0
	}
	return decodeCommitMark(b)
}

func decodeCommitMark(b []byte) uint64 {
	if len(b) != 12 || binary.BigEndian.Uint32(b[8:]) != crc32.Checksum(b[:8], diskfile.Castagnoli) {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// note keeps that everything up to index is committed. A disk that refuses is
// left to the log to complain about.
func (c *commitMark) note(index uint64) {
	if c == nil {
		return
	}
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 12), index)
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(b, diskfile.Castagnoli))
	_, _ = c.f.WriteAt(b, 0)
}

func (c *commitMark) close() error {
	if c == nil {
		return nil
	}
	return c.f.Close()
}

// catchUp applies what is known to be committed, from the snapshot on, before
// Raft runs. Raft hands over the same entries once more; the machine passes over
// what it has applied.
func (o *opening) catchUp(snapshot uint64) error {
	mark, committed, err := openCommitMark(o.dir.path)
	if err != nil {
		return err
	}
	o.mark = mark
	last, err := o.disk.LastIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.path, err)
	}
	if o.fresh {
		committed = 0 // of a first start that did not get to its end
	}
	if end := max(last, snapshot); committed > end {
		return diskfile.Corrupt(o.disk.path, fmt.Errorf("ends at entry %d, and entry %d was committed", end, committed))
	}
	var l raft.Log
	for i := snapshot + 1; i <= min(committed, last); i++ {
		if err := o.disk.GetLog(i, &l); err != nil {
			return diskfile.Corrupt(o.disk.path, fmt.Errorf("entry %d cannot be read: %w", i, err))
		}
		o.m.take(&l)
	}
	o.m.publish()
	return nil
}
