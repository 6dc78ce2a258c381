package diskfile

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"syscall"
)

// What can be wrong with a file. The store's package has these under the same names.
var (
	// ErrNewerVersion: the data was written by a newer version of this program.
	ErrNewerVersion = errors.New("raftstore: data was written by a newer version")
	// ErrCorrupt: a file of the data directory is damaged.
	ErrCorrupt = errors.New("raftstore: data is damaged")
	// ErrDiskFull: no space left where the log is. Reads go on; writes are
	// accepted again as soon as there is space.
	ErrDiskFull = errors.New("raftstore: disk is full")
	// ErrDiskReadOnly: the log's file system is read-only.
	ErrDiskReadOnly = errors.New("raftstore: disk is read-only")
	// ErrDisk: the disk refused a write for another reason.
	ErrDisk = errors.New("raftstore: disk failure")
)

// Castagnoli is the polynomial of every checksum in the store's files.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Corrupt is the error for a damaged file: one line, the file, what to do.
func Corrupt(path string, err error) error {
	why := strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": ")
	return fmt.Errorf("%w: %s: %s; nothing was changed: restore the directory from a backup, or move it away to start empty", ErrCorrupt, path, why)
}

// Error gives a failed write of path its sentinel.
func Error(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: free some space", ErrDiskFull, path)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %s: mount it writable", ErrDiskReadOnly, path)
	}
	return fmt.Errorf("%w: %s: %w", ErrDisk, path, err)
}
