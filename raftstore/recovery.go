package raftstore

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/consensus"
	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftlog"
	"github.com/balsahq/balsa/raftstore/snapshot"
)

// openFiles opens log and snapshots, checks every byte that Raft will rely on, and restores the newest snapshot. Raft itself would skip
// a damaged snapshot and panic at a missing entry.
func (o *opening) openFiles() error {
	if err := o.dropUnfinished(); err != nil {
		return err
	}
	if err := o.expectLog(); err != nil {
		return err
	}
	d, err := o.openLog(o.dir.logKind())
	if err != nil {
		return err
	}
	o.disk, o.logs, o.stable = d, d, d
	snaps, err := snapshot.Open(snapshot.Options{Path: o.dir.snapshotPath(), Keep: keepSnapshots, Logger: o.cfg.Logger, Applied: o.m.index.Load})
	if err != nil {
		return err
	}
	o.snaps = snaps
	reached, err := o.restoreNewest(snaps)
	if err != nil {
		return err
	}
	if err := o.checkLog(reached); err != nil {
		return err
	}
	return o.catchUp(reached)
}

// openLog opens or makes the directory's log of one kind.
func (o *opening) openLog(kind raftlog.Kind) (*raftlog.Store, error) {
	return raftlog.Open(raftlog.Options{Dir: o.dir.path, Kind: kind, Logger: o.cfg.Logger, WrapFile: o.cfg.wrapLog})
}

// dropUnfinished removes the files of a first start that never finished, and of snapshots that were being written. Neither holds an
// acknowledged write.
func (o *opening) dropUnfinished() error {
	if o.dir.new {
		o.fresh = true
		return o.dropFirstStart()
	}
	return snapshot.Clean(o.dir.snapshotPath())
}

// dropFirstStart removes the log of a start that ended before the directory got its identity. It refuses when a log, of either kind,
// holds more than such a start writes.
func (o *opening) dropFirstStart() error {
	names, err := snapshot.AllNames(o.dir.snapshotPath())
	if err != nil {
		return err
	}
	if len(names) > 0 {
		return o.missingMeta()
	}
	for _, kind := range raftlog.Kinds {
		if err := o.dropFirstLog(kind); err != nil {
			return err
		}
	}
	return nil
}

// missingMeta is the error for a directory that holds data and no identity.
func (o *opening) missingMeta() error {
	return diskfile.Corrupt(o.dir.metaPath(), errors.New("missing, though the directory holds data"))
}

func (o *opening) dropFirstLog(kind raftlog.Kind) error {
	path := kind.Path(o.dir.path)
	st, err := os.Stat(path)
	if os.IsNotExist(err) {
		return nil
	}
	d, err := o.openLog(kind)
	if errors.Is(err, ErrCorrupt) && st != nil && st.Mode().IsRegular() && st.Size() < int64(4*os.Getpagesize()) {
		return os.Remove(path) // power was cut while bbolt made the file: it never held an entry
	}
	if err != nil {
		return err
	}
	last, err := d.LastIndex()
	if err = errors.Join(err, d.Close()); err != nil {
		return err
	}
	// Entries of a first start: the configuration, the leader's no-op, its mark of the term. No user's data.
	if last > 3 {
		return o.missingMeta()
	}
	return os.RemoveAll(path)
}

// expectLog refuses to make a new log where there must be one.
func (o *opening) expectLog() error {
	if o.fresh {
		return nil
	}
	st, err := os.Stat(o.dir.logPath())
	if os.IsNotExist(err) {
		return diskfile.Corrupt(o.dir.logPath(), errors.New("missing"))
	}
	if err != nil {
		return diskfile.Error(o.dir.logPath(), err)
	}
	if st.Size() == 0 {
		return diskfile.Corrupt(o.dir.logPath(), errors.New("empty"))
	}
	return nil
}

// restoreNewest restores the newest snapshot and returns the index it reaches, 0 when there is none. It returns an error when any
// snapshot cannot be read: an older one could be a state from before acknowledged writes.
func (o *opening) restoreNewest(snaps *snapshot.Files) (uint64, error) {
	list, err := snaps.List()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	newest := list[0]
	file := snaps.StatePath(newest.ID)
	// Not through snaps.Open, which would read the whole file once more.
	f, err := os.Open(file)
	if err != nil {
		return 0, diskfile.Corrupt(file, err)
	}
	defer f.Close()
	if err := o.m.restore(f); err != nil {
		if errors.Is(err, ErrNewerVersion) {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		return 0, diskfile.Corrupt(file, err)
	}
	snaps.MarkWhole(newest.ID)
	return newest.Index, nil
}

// warmBytes bounds the entries kept from the check for the replay after it.
const warmBytes = 64 << 20

// checkLog reads the whole log. It returns an error when an entry is missing, damaged, or of a kind that this program does not know, or
// when there is a gap between the snapshot and the log.
func (o *opening) checkLog(restored uint64) error {
	first, err := o.disk.FirstIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.Path(), err)
	}
	last, err := o.disk.LastIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.Path(), err)
	}
	if o.fresh {
		return nil
	}
	switch {
	case last == 0 && restored == 0 && o.meta.Joined:
		return nil // no leader has added this peer yet
	case last == 0 && restored == 0:
		return diskfile.Corrupt(o.disk.Path(), errors.New("holds no entries"))
	case first > restored+1:
		return diskfile.Corrupt(o.dir.snapshotPath(), fmt.Errorf("no snapshot reaches entry %d, where the log begins", first))
	case last < restored:
		return o.dropOldLog(first, last)
	}
	from := first
	if o.disk.Checked() {
		from = max(first, restored+1)
	}
	warm, kept := make(map[uint64]*raft.Log), 0
	for i := from; i <= last; i++ {
		l := new(raft.Log)
		if err := o.disk.GetLog(i, l); err != nil {
			return diskfile.Corrupt(o.disk.Path(), fmt.Errorf("entry %d cannot be read: %s", i, strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": ")))
		}
		if l.Type == raft.LogCommand {
			if err := consensus.CheckEntry(l.Data); err != nil {
				return fmt.Errorf("%s: log entry %d: %w", o.disk.Path(), i, err)
			}
		}
		if kept += len(l.Data); i > restored && kept < warmBytes {
			warm[i] = l
		}
	}
	o.disk.SetWarm(warm)
	return nil
}

// dropOldLog empties a log that ends before the snapshot. The leader sent the snapshot, and the process ended before Raft emptied the
// log for it. A log must not have gaps.
func (o *opening) dropOldLog(first, last uint64) error {
	if last == 0 {
		return nil
	}
	return o.disk.DeleteRange(first, last)
}

// catchUp applies the entries that are known to be committed, from the snapshot on, before Raft runs. Raft hands over the same
// entries once more; the machine passes over those it has applied.
func (o *opening) catchUp(restored uint64) error {
	mark, committed, err := raftlog.OpenCommitMark(o.dir.path)
	if err != nil {
		return err
	}
	o.mark = mark
	last, err := o.disk.LastIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.Path(), err)
	}
	if o.fresh {
		committed = 0 // the mark is of a first start that was not finished
	}
	if end := max(last, restored); committed > end {
		return diskfile.Corrupt(o.disk.Path(), fmt.Errorf("ends at entry %d, and entry %d was committed", end, committed))
	}
	var l raft.Log
	for i := restored + 1; i <= min(committed, last); i++ {
		if err := o.disk.GetLog(i, &l); err != nil {
			return diskfile.Corrupt(o.disk.Path(), fmt.Errorf("entry %d cannot be read: %w", i, err))
		}
		o.m.applyLog(&l)
	}
	o.m.publish()
	return nil
}
