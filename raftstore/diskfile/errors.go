package diskfile

import (
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"syscall"

	"github.com/balsahq/balsa/raftstore/errdefs"
)

// Castagnoli is the polynomial of every checksum in the store's files.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Corrupt returns the error for a damaged file: one line that names the file and what to do.
func Corrupt(path string, err error) error {
	why := strings.TrimPrefix(err.Error(), errdefs.ErrCorrupt.Error()+": ")
	return fmt.Errorf("%w: %s: %s; nothing was changed: restore the directory from a backup, or move it away to start empty", errdefs.ErrCorrupt, path, why)
}

// Error returns the store's error for a failed write of path: ErrDiskFull, ErrDiskReadOnly or ErrDisk.
func Error(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: free some space", errdefs.ErrDiskFull, path)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %s: mount it writable", errdefs.ErrDiskReadOnly, path)
	}
	return fmt.Errorf("%w: %s: %w", errdefs.ErrDisk, path, err)
}
