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

// Corrupt is the error for a damaged file: one line, the file, what to do.
func Corrupt(path string, err error) error {
	why := strings.TrimPrefix(err.Error(), errdefs.ErrCorrupt.Error()+": ")
	return fmt.Errorf("%w: %s: %s; nothing was changed: restore the directory from a backup, or move it away to start empty", errdefs.ErrCorrupt, path, why)
}

// Error gives a failed write of path its sentinel.
func Error(path string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s: free some space", errdefs.ErrDiskFull, path)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: %s: mount it writable", errdefs.ErrDiskReadOnly, path)
	}
	return fmt.Errorf("%w: %s: %w", errdefs.ErrDisk, path, err)
}
