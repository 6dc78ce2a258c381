// Package errdefs holds the sentinel errors of the store, for all of its packages. Package raftstore has the same names.
package errdefs

import "errors"

// The errors of the store. Test with errors.Is; the wrapped text names the key, revision, file or lease.
var (
	// ErrCompacted: the revision is older than the history that is kept.
	ErrCompacted = errors.New("raftstore: revision has been compacted")
	// ErrFutureRevision: the revision has not been reached yet.
	ErrFutureRevision = errors.New("raftstore: revision is in the future")
	// ErrOverrun: the watcher fell behind the history that is kept. The client must list again and watch from there.
	ErrOverrun = errors.New("raftstore: watcher fell behind the kept history")
	// ErrClosed: the store, or the watcher, has been closed.
	ErrClosed = errors.New("raftstore: closed")
	// ErrNoLeader: no peer leads, or the leadership ended while the write was under way. In the second case the write may or
	// may not have had its effect.
	ErrNoLeader = errors.New("raftstore: no leader")
	// ErrNotLeader: the peer that was asked does not lead. Nothing was appended.
	ErrNotLeader = errors.New("raftstore: this peer does not lead")
	// ErrUnreachable: the peer could not be asked, or did not answer. The request may have had its effect.
	ErrUnreachable = errors.New("raftstore: peer cannot be reached")
	// ErrTooLarge: the transaction is larger than Config.MaxEntryBytes.
	ErrTooLarge = errors.New("raftstore: transaction is too large")
	// ErrInvalid: the request contradicts itself or is out of bounds; nothing was proposed.
	ErrInvalid = errors.New("raftstore: invalid request")
	// ErrDuplicateKey: one branch of a transaction writes a key twice.
	ErrDuplicateKey = errors.New("raftstore: duplicate key in transaction")
	// ErrKeyNotFound: IgnoreValue or IgnoreLease on a key that does not exist.
	ErrKeyNotFound = errors.New("raftstore: key not found")
	// ErrLeaseNotFound: there is no such lease: it expired, was revoked or was never granted.
	ErrLeaseNotFound = errors.New("raftstore: lease not found")
	// ErrLeaseExists: the lease ID asked for is taken.
	ErrLeaseExists = errors.New("raftstore: lease exists")

	// ErrLocked: another process has the data directory open.
	ErrLocked = errors.New("raftstore: data directory is in use by another process")
	// ErrNewerVersion: the data was written by a newer version of this program.
	ErrNewerVersion = errors.New("raftstore: data was written by a newer version")
	// ErrWrongCluster: the data directory belongs to another cluster.
	ErrWrongCluster = errors.New("raftstore: data directory belongs to another cluster")
	// ErrCorrupt: a file of the data directory is damaged.
	ErrCorrupt = errors.New("raftstore: data is damaged")
	// ErrDiskFull: no space is left where the log is. Reads go on; writes are accepted again as soon as there is space.
	ErrDiskFull = errors.New("raftstore: disk is full")
	// ErrDiskReadOnly: the log's file system is read-only.
	ErrDiskReadOnly = errors.New("raftstore: disk is read-only")
	// ErrDisk: the disk refused a write for another reason.
	ErrDisk = errors.New("raftstore: disk failure")
)
