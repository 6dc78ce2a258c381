package raftstore

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// dirVersion is the layout of the data directory this code writes:
//
//	lock          held by the process that has it open
//	meta.json     format, cluster ID, server ID, generation, kind of log; written last
//	wal/          Raft's log, term and vote; or
//	raft.db       the same in one bbolt file
//	commit        the commit index, see raftlog.CommitMark
//	snapshots/    the state up to where the log begins
const dirVersion = 2

// dirMeta is the identity of a data directory. The server ID is random, made once, and is never an address.
type dirMeta struct {
	Format    int    `json:"format"`
	ClusterID string `json:"clusterID"`
	ServerID  string `json:"serverID"`
	// Generation counts how often the cluster was begun anew from one survivor. The first is 1, which format 1 does not write.
	Generation int64 `json:"generation,omitempty"`
	// Joined: this peer was added to a cluster and did not begin one. Its log may be empty until the leader has reached it.
	Joined bool `json:"joined,omitempty"`
	// Log is the kind of log that the directory began with; empty is raftlog.WAL.
	Log raftlog.Kind `json:"log,omitempty"`
}

type dataDir struct {
	path string
	lock *os.File
	meta dirMeta
	new  bool // meta is not on disk yet
}

func (d *dataDir) metaPath() string     { return filepath.Join(d.path, "meta.json") }
func (d *dataDir) snapshotPath() string { return filepath.Join(d.path, "snapshots") }

// logKind is the kind of log in the directory.
func (d *dataDir) logKind() raftlog.Kind {
	if d.meta.Log == "" {
		return raftlog.WAL
	}
	return d.meta.Log
}

// logPath is where the log is.
func (d *dataDir) logPath() string { return d.logKind().Path(d.path) }

// openDir locks the directory at path and reads its identity. A want that is not empty must match.
func openDir(path string, want dirMeta) (_ *dataDir, err error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, diskfile.Error(path, err)
	}
	d := &dataDir{path: path}
	if d.lock, err = lockFile(filepath.Join(path, "lock")); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			d.lock.Close()
		}
	}()
	if err := d.readMeta(); err != nil {
		return nil, err
	}
	if d.new {
		d.meta = newMeta(want)
		return d, nil
	}
	if want.ClusterID != "" && want.ClusterID != d.meta.ClusterID {
		return nil, fmt.Errorf("%w: %s is of cluster %s, not %s", ErrWrongCluster, path, d.meta.ClusterID, want.ClusterID)
	}
	if want.ServerID != "" && want.ServerID != d.meta.ServerID {
		return nil, fmt.Errorf("%w: %s is of server %s, not %s", ErrWrongCluster, path, d.meta.ServerID, want.ServerID)
	}
	if want.Log != "" && want.Log != d.logKind() {
		return nil, fmt.Errorf("%w: %s began with a log of kind %s and cannot be opened with %s: start the server with %s, or let it join anew with an empty directory",
			ErrInvalid, path, d.logKind(), want.Log, d.logKind())
	}
	return d, nil
}

// newMeta fills in the fields that a new directory was not given.
func newMeta(m dirMeta) dirMeta {
	if m.ClusterID == "" {
		m.ClusterID = newID()
	}
	if m.ServerID == "" {
		m.ServerID = newID()
	}
	m.Format, m.Generation = dirVersion, max(m.Generation, 1)
	if m.Log == raftlog.WAL {
		m.Log = "" // as older programs write and read it
	}
	return m
}

func newID() string {
	var b [16]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, diskfile.Error(path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", ErrLocked, path)
		}
		return nil, diskfile.Error(path, err)
	}
	return f, nil
}

func (d *dataDir) readMeta() error {
	b, err := os.ReadFile(d.metaPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		d.new = true
		return nil
	case err != nil:
		return diskfile.Error(d.metaPath(), err)
	}
	m, err := decodeDirMeta(b)
	if errors.Is(err, ErrNewerVersion) {
		return fmt.Errorf("%s: %w", d.metaPath(), err)
	}
	if err != nil {
		return diskfile.Corrupt(d.metaPath(), err)
	}
	d.meta = *m
	return nil
}

// decodeDirMeta reads the text of meta.json.
func decodeDirMeta(b []byte) (*dirMeta, error) {
	// The version first: a newer format may look different in all else.
	var v struct {
		Format int `json:"format"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if v.Format > dirVersion {
		return nil, fmt.Errorf("%w: directory has format %d, this program knows up to %d", ErrNewerVersion, v.Format, dirVersion)
	}
	m := new(dirMeta)
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(m); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if m.Log != "" && !slices.Contains(raftlog.Kinds, m.Log) {
		return nil, fmt.Errorf("%w: the log is of kind %q, this program knows %q", ErrNewerVersion, m.Log, raftlog.Kinds)
	}
	if m.Format < 1 || m.ClusterID == "" || m.ServerID == "" {
		return nil, fmt.Errorf("%w: incomplete", ErrCorrupt)
	}
	m.Generation = max(m.Generation, 1)
	return m, nil
}

// commit writes the identity. It is the last step of making a directory: a directory without an identity never held an acknowledged
// write.
func (d *dataDir) commit() error {
	if !d.new {
		return nil
	}
	return d.write()
}

func (d *dataDir) write() error {
	b, err := json.Marshal(d.meta)
	if err != nil {
		return err
	}
	if err := diskfile.WriteSynced(d.metaPath(), append(b, '\n')); err != nil {
		return diskfile.Error(d.metaPath(), err)
	}
	d.new = false
	return nil
}

func (d *dataDir) close() error { return d.lock.Close() }
