// Package diskspace measures file systems.
package diskspace

import (
	"strings"

	"golang.org/x/sys/unix"
)

// Of returns the size of the file system that holds dir, and how much of it is free, in bytes. Where dir does not exist, the
// nearest existing parent counts: dir will be made there.
func Of(dir string) (total, free int64, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(dir, &st)
		if err == nil {
			return int64(st.Blocks) * st.Bsize, int64(st.Bavail) * st.Bsize, nil
		}
		i := strings.LastIndexByte(strings.TrimSuffix(dir, "/"), '/')
		if err != unix.ENOENT || i < 0 {
			return 0, 0, err
		}
		dir = dir[:i+1]
	}
}
