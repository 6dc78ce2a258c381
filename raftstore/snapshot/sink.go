package snapshot

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Sink writes one snapshot, which exists from Close on.
type Sink struct {
	store *Files
	meta  raft.SnapshotMeta
	path  string
	file  *diskfile.PacedFile
	w     *bufio.Writer
	own   bool
	check *arrival // of a snapshot that another server sends; nil before the first Write
	done  bool
}

// Trust says that this process makes the bytes that are written, so that they need no check. It comes before the first Write.
func (k *Sink) Trust() { k.own = true }

// ID implements raft.SnapshotSink.
func (k *Sink) ID() string { return k.meta.ID }

// Write implements io.Writer.
func (k *Sink) Write(b []byte) (int, error) {
	if !k.own {
		if k.check == nil {
			k.check = newArrival()
		}
		if err := k.check.feed(b); err != nil {
			return 0, err
		}
	}
	return k.w.Write(b)
}

// Close implements raft.SnapshotSink.
func (k *Sink) Close() error {
	if k.done {
		return nil
	}
	k.done = true
	if !k.own && k.check == nil {
		k.check = newArrival() // no byte came, which is no snapshot either
	}
	if err := k.check.finish(nil); err != nil {
		return errors.Join(err, k.file.File.Close(), os.RemoveAll(k.path))
	}
	err := errors.Join(k.w.Flush(), k.file.File.Sync(), k.file.File.Close())
	if err == nil {
		err = k.publish()
	}
	if err != nil {
		return diskfile.Error(k.path, errors.Join(err, os.RemoveAll(k.path)))
	}
	k.store.MarkWhole(k.meta.ID)
	if err := k.store.removeOld(); err != nil {
		k.store.log.Warn("old snapshots cannot be removed, the next snapshot tries again", "dir", k.store.path, "err", err)
	}
	return nil
}

func (k *Sink) publish() error {
	k.meta.Size = k.file.Size
	b, err := json.Marshal(k.meta)
	if err != nil {
		return err
	}
	if err := diskfile.WriteSynced(filepath.Join(k.path, metaFile), append(b, '\n')); err != nil {
		return err
	}
	return errors.Join(os.Rename(k.path, filepath.Join(k.store.path, k.meta.ID)), diskfile.SyncDir(k.store.path))
}

// Cancel implements raft.SnapshotSink.
func (k *Sink) Cancel() error {
	if k.done {
		return nil
	}
	k.done = true
	_ = k.check.finish(errCancelled) // it returns errCancelled
	return errors.Join(k.file.File.Close(), os.RemoveAll(k.path))
}

var errCancelled = errors.New("raftstore: snapshot cancelled")

// arrival checks a snapshot while it is written, in a goroutine that ends with finish.
type arrival struct {
	w    *io.PipeWriter
	done chan error // buffered
}

func newArrival() *arrival {
	r, w := io.Pipe()
	a := &arrival{w: w, done: make(chan error, 1)}
	go func() {
		_, err := mvcc.VerifySnapshot(r)
		if err != nil {
			err = fmt.Errorf("snapshot that was sent: %w", err)
		}
		r.CloseWithError(err)
		a.done <- err
	}()
	return a
}

// feed checks the next bytes. It returns the fault of the bytes before.
func (a *arrival) feed(b []byte) error {
	_, err := a.w.Write(b)
	return err
}

// finish returns nil when the bytes so far are a whole snapshot. With an err that is not nil, it ends the check and returns err.
// A nil arrival finishes with nil.
func (a *arrival) finish(err error) error {
	if a == nil {
		return nil
	}
	a.w.CloseWithError(err)
	return <-a.done
}
