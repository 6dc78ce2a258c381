package raftstore

import "github.com/balsahq/balsa/raftstore/errdefs"

// The errors of the store. Test with errors.Is; the wrapped text names the key, revision, file or lease.
var (
	// ErrCompacted: the revision is older than the history that is kept.
	ErrCompacted = errdefs.ErrCompacted
	// ErrFutureRevision: the revision has not been reached yet.
	ErrFutureRevision = errdefs.ErrFutureRevision
	// ErrOverrun: the watcher fell behind the history that is kept. The client must list again and watch from there.
	ErrOverrun = errdefs.ErrOverrun
	// ErrClosed: the store, or the watcher, has been closed.
	ErrClosed = errdefs.ErrClosed
	// ErrNoLeader: no peer leads, or the leadership ended while the write was under way. In the second case the write may or
	// may not have had its effect.
	ErrNoLeader = errdefs.ErrNoLeader
	// ErrNotLeader: the peer that was asked does not lead. Nothing was appended.
	ErrNotLeader = errdefs.ErrNotLeader
	// ErrUnreachable: the peer could not be asked, or did not answer. The request may have had its effect.
	ErrUnreachable = errdefs.ErrUnreachable
	// ErrTooLarge: the transaction is larger than Config.MaxEntryBytes.
	ErrTooLarge = errdefs.ErrTooLarge
	// ErrInvalid: the request contradicts itself or is out of bounds; nothing was proposed.
	ErrInvalid = errdefs.ErrInvalid
	// ErrDuplicateKey: one branch of a transaction writes a key twice.
	ErrDuplicateKey = errdefs.ErrDuplicateKey
	// ErrKeyNotFound: IgnoreValue or IgnoreLease on a key that does not exist.
	ErrKeyNotFound = errdefs.ErrKeyNotFound
	// ErrLeaseNotFound: there is no such lease: it expired, was revoked or was never granted.
	ErrLeaseNotFound = errdefs.ErrLeaseNotFound
	// ErrLeaseExists: the lease ID asked for is taken.
	ErrLeaseExists = errdefs.ErrLeaseExists
	// ErrLocked: another process has the data directory open.
	ErrLocked = errdefs.ErrLocked
	// ErrNewerVersion: the data was written by a newer version of this program.
	ErrNewerVersion = errdefs.ErrNewerVersion
	// ErrWrongCluster: the data directory belongs to another cluster.
	ErrWrongCluster = errdefs.ErrWrongCluster
	// ErrCorrupt: a file of the data directory is damaged.
	ErrCorrupt = errdefs.ErrCorrupt
	// ErrDiskFull: no space is left where the log is. Reads go on; writes are accepted again as soon as there is space.
	ErrDiskFull = errdefs.ErrDiskFull
	// ErrDiskReadOnly: the log's file system is read-only.
	ErrDiskReadOnly = errdefs.ErrDiskReadOnly
	// ErrDisk: the disk refused a write for another reason.
	ErrDisk = errdefs.ErrDisk
)
