package snapshot

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/balsahq/balsa/raftstore/diskfile"
)

// Names lists the finished snapshots in the directory at path, none if there is no directory.
func Names(path string) ([]string, error) {
	names, err := AllNames(path)
	return slices.DeleteFunc(names, func(n string) bool { return strings.HasSuffix(n, tmpSuffix) }), err
}

// AllNames lists the snapshots in the directory at path, those being written or removed included.
func AllNames(path string) ([]string, error) {
	entries, err := os.ReadDir(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, diskfile.Error(path, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// Clean removes what a crash left in the directory at path: snapshots that were being written, and old ones that were being
// removed. Neither holds anything acknowledged.
func Clean(path string) error {
	names, err := AllNames(path)
	if err != nil {
		return err
	}
	var finished []string
	for _, n := range names {
		if !strings.HasSuffix(n, tmpSuffix) {
			finished = append(finished, n)
			continue
		}
		if err := os.RemoveAll(filepath.Join(path, n)); err != nil {
			return diskfile.Error(path, err)
		}
	}
	return removeHalfRemoved(path, finished)
}

// removeHalfRemoved removes snapshots that lack a file while a newer one is whole. The newest is never removed.
func removeHalfRemoved(path string, names []string) error {
	type position struct{ term, index, at uint64 }
	var newest position // of the snapshots that are whole
	halfRemoved := make(map[string]position)
	for _, n := range names {
		var s position
		if _, err := fmt.Sscanf(n, "%d-%d-%d", &s.term, &s.index, &s.at); err != nil {
			continue // reading it later returns an error that names it
		}
		if hasAllFiles(filepath.Join(path, n)) {
			newest = slices.MaxFunc([]position{newest, s}, func(a, b position) int {
				return cmp.Or(cmp.Compare(a.term, b.term), cmp.Compare(a.index, b.index), cmp.Compare(a.at, b.at))
			})
		} else {
			halfRemoved[n] = s
		}
	}
	for n, s := range halfRemoved {
		if s.term < newest.term || s.term == newest.term && s.index < newest.index {
			if err := os.RemoveAll(filepath.Join(path, n)); err != nil {
				return diskfile.Error(path, err)
			}
		}
	}
	return nil
}

func hasAllFiles(dir string) bool {
	for _, f := range []string{metaFile, stateFile} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return false
		}
	}
	return true
}
