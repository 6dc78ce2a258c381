package raftstore

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// openFiles opens log and snapshots, checks every byte Raft will rely on, and
// restores the newest snapshot. Raft itself would skip a damaged snapshot and
// panic at a missing entry.
func (o *opening) openFiles() error {
	if err := o.pickLog(); err != nil {
		return err
	}
	if err := o.dropUnfinished(); err != nil {
		return err
	}
	if err := o.expectLog(); err != nil {
		return err
	}
	d, err := openDisk(o.dir.logPath(), o.dir.bolt, o.cfg)
	if err != nil {
		return err
	}
	o.disk, o.logs, o.stable = d, d, d
	snaps, err := openSnapshotFiles(o.dir.snapshotPath(), keepSnapshots, o.cfg.Logger)
	if err != nil {
		return err
	}
	snaps.applied = o.m.index.Load
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

// pickLog decides where the log is. A directory keeps the kind it began with.
func (o *opening) pickLog() error {
	o.dir.bolt = o.cfg.LogStore == LogStoreBolt
	want, other, there := LogStoreWAL, LogStoreBolt, o.dir.boltPath()
	if o.dir.bolt {
		want, other, there = LogStoreBolt, LogStoreWAL, o.dir.walPath()
	}
	if _, err := os.Stat(there); err == nil {
		return fmt.Errorf("%w: %s holds a log of kind %q, not %q: a server keeps the kind it began with", ErrInvalid, o.dir.path, other, want)
	}
	return nil
}

// dropUnfinished removes what a first start that never finished, or a snapshot
// that was being written, left behind. Neither holds anything acknowledged.
func (o *opening) dropUnfinished() error {
	if o.dir.new {
		o.fresh = true
		return o.dropFirstStart()
	}
	names, err := snapshotNames(o.dir.snapshotPath(), true)
	if err != nil {
		return err
	}
	for _, n := range names {
		if strings.HasSuffix(n, ".tmp") {
			if err := os.RemoveAll(filepath.Join(o.dir.snapshotPath(), n)); err != nil {
				return diskfile.Error(o.dir.snapshotPath(), err)
			}
		}
	}
	return o.dropHalfRemoved()
}

// dropHalfRemoved finishes the removal of old snapshots that a crash cut short:
// those that lack a file while a newer one is whole. The newest is never
// removed.
func (o *opening) dropHalfRemoved() error {
	names, err := snapshotNames(o.dir.snapshotPath(), false)
	if err != nil {
		return err
	}
	type snapshot struct{ term, index, at uint64 }
	var newest snapshot // of those that are whole
	parsed := make(map[string]snapshot)
	for _, n := range names {
		var s snapshot
		if _, err := fmt.Sscanf(n, "%d-%d-%d", &s.term, &s.index, &s.at); err != nil {
			continue // judged when it is read
		}
		if o.isWhole(n) {
			newest = slices.MaxFunc([]snapshot{newest, s}, func(a, b snapshot) int {
				return cmp.Or(cmp.Compare(a.term, b.term), cmp.Compare(a.index, b.index), cmp.Compare(a.at, b.at))
			})
		} else {
			parsed[n] = s
		}
	}
	for n, s := range parsed {
		if s.term < newest.term || s.term == newest.term && s.index < newest.index {
			if err := os.RemoveAll(filepath.Join(o.dir.snapshotPath(), n)); err != nil {
				return diskfile.Error(o.dir.snapshotPath(), err)
			}
		}
	}
	return nil
}

func (o *opening) isWhole(name string) bool {
	for _, f := range []string{"meta.json", "state.bin"} {
		if _, err := os.Stat(filepath.Join(o.dir.snapshotPath(), name, f)); err != nil {
			return false
		}
	}
	return true
}

// dropFirstStart removes the log of a start that ended before the directory
// got its identity, and refuses when it holds more than such a start writes.
func (o *opening) dropFirstStart() error {
	path := o.dir.logPath()
	names, err := snapshotNames(o.dir.snapshotPath(), true)
	if err != nil {
		return err
	}
	if _, err := os.Stat(path); os.IsNotExist(err) && len(names) == 0 {
		return nil
	}
	d, err := openDisk(path, o.dir.bolt, o.cfg)
	if errors.Is(err, ErrCorrupt) && len(names) == 0 {
		// Power was cut while bbolt made the file: it never held an entry.
		if st, serr := os.Stat(path); serr == nil && st.Mode().IsRegular() && st.Size() < int64(4*os.Getpagesize()) {
			return os.Remove(path)
		}
	}
	if err != nil {
		return err
	}
	last, err := d.LastIndex()
	if err = errors.Join(err, d.close()); err != nil {
		return err
	}
	// Bootstrap, the leader's no-op, its mark of the term: nothing of a user's.
	if last > 3 || len(names) > 0 {
		return diskfile.Corrupt(o.dir.metaPath(), errors.New("missing, though the directory holds data"))
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

// snapshotNames lists the snapshot directories, those being written included
// when all is set.
func snapshotNames(path string, all bool) ([]string, error) {
	entries, err := os.ReadDir(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, diskfile.Error(path, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && (all || !strings.HasSuffix(e.Name(), ".tmp")) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// restoreNewest restores the newest snapshot and returns the index it reaches,
// 0 when there is none. It refuses when any snapshot cannot be read, because
// falling back silently could mean going back in time.
func (o *opening) restoreNewest(snaps *snapshotFiles) (uint64, error) {
	list, err := snaps.List()
	if err != nil || len(list) == 0 {
		return 0, err
	}
	newest := list[0]
	file := filepath.Join(o.dir.snapshotPath(), newest.ID, "state.bin")
	// Not through snaps.Open, which reads the whole file once more for a
	// second checksum.
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
	snaps.whole.Store(newest.ID, nil)
	return newest.Index, nil
}

// warmBytes bounds the entries kept from the check for the replay after it.
const warmBytes = 64 << 20

// checkLog reads the whole log: no entry missing, each as it was written, each
// of a kind this program knows, and no gap behind the snapshot.
func (o *opening) checkLog(snapshot uint64) error {
	first, err := o.disk.FirstIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.path, err)
	}
	last, err := o.disk.LastIndex()
	if err != nil {
		return diskfile.Corrupt(o.disk.path, err)
	}
	if o.fresh {
		return nil
	}
	tail, err := o.disk.store.Tail()
	if err != nil {
		return diskfile.Corrupt(o.disk.path, err)
	}
	switch {
	case tail != last:
		return diskfile.Corrupt(o.disk.path, fmt.Errorf("ends at entry %d, not %d", last, tail))
	case last == 0 && snapshot == 0 && o.meta.Joined:
		return nil // nobody has added this peer yet
	case last == 0 && snapshot == 0:
		return diskfile.Corrupt(o.disk.path, errors.New("holds no entries"))
	case first > snapshot+1:
		return diskfile.Corrupt(o.dir.snapshotPath(), fmt.Errorf("no snapshot reaches entry %d, where the log begins", first))
	case last < snapshot:
		return o.dropOldLog(first, last)
	}
	from := first
	if c, ok := o.disk.store.(interface{ Checked() bool }); ok && c.Checked() {
		from = max(first, snapshot+1)
	}
	warm, kept := make(map[uint64]*raft.Log), 0
	for i := from; i <= last; i++ {
		l := new(raft.Log)
		if err := o.disk.GetLog(i, l); err != nil {
			return diskfile.Corrupt(o.disk.path, fmt.Errorf("entry %d cannot be read: %s", i, strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": ")))
		}
		if l.Type == raft.LogCommand {
			if err := checkEntry(l.Data); err != nil {
				return fmt.Errorf("%s: log entry %d: %w", o.disk.path, i, err)
			}
		}
		if kept += len(l.Data); i > snapshot && kept < warmBytes {
			warm[i] = l
		}
	}
	o.disk.warm.Store(&warm)
	return nil
}

// dropOldLog empties a log that ends before the snapshot: the snapshot came from
// the leader, and the process ended before Raft emptied the log for it. A log
// may have no gap.
func (o *opening) dropOldLog(first, last uint64) error {
	if last == 0 {
		return nil
	}
	return o.disk.DeleteRange(first, last)
}
