package raftlog

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"

	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/wal"
)

// Kind says which library's files hold the log.
type Kind string

// The kinds of log. See the package comment for the difference.
const (
	WAL    Kind = "wal"
	BoltDB Kind = "boltdb"
)

// Kinds are all kinds of log.
var Kinds = []Kind{WAL, BoltDB}

// Path returns where a log of this kind is in a data directory.
func (k Kind) Path(dir string) string {
	if k == BoltDB {
		return filepath.Join(dir, "raft.db")
	}
	return filepath.Join(dir, "wal")
}

// Options say how Open opens a log.
type Options struct {
	Dir    string // the data directory, which also holds the commit mark
	Kind   Kind
	Logger *slog.Logger
	// WrapFile lets a test stand between Store and the file; nil: nothing does.
	WrapFile func(File) File
}

// Open opens or makes the log in a data directory. It may panic at damage, which is how bbolt answers it.
func Open(o Options) (*Store, error) {
	path := o.Kind.Path(o.Dir)
	var file File
	var err error
	if o.Kind == BoltDB {
		file, err = openBolt(path)
	} else {
		file, err = wal.Open(path, readCommitMark(o.Dir))
	}
	if err != nil {
		return nil, openError(path, err)
	}
	if o.WrapFile != nil {
		file = o.WrapFile(file)
	}
	return New(file, path, o.Logger), nil
}

// openError returns the store's error for a log that cannot be opened: a refusal of the system, or else damage.
func openError(path string, err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("%w: %s", errdefs.ErrLocked, path)
	}
	for _, known := range []error{errdefs.ErrCorrupt, errdefs.ErrNewerVersion, errdefs.ErrDisk, errdefs.ErrDiskFull, errdefs.ErrDiskReadOnly} {
		if errors.Is(err, known) {
			return err
		}
	}
	var refused syscall.Errno
	if errors.As(err, &refused) {
		return diskfile.Error(path, err)
	}
	return diskfile.Corrupt(path, err)
}
