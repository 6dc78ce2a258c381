package containerlogs

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"
)

// Rotate renames the log at path, has the runtime open a new one (reopen), compresses the older files and removes the
// oldest: maxFiles count the new and the renamed file, too. When reopen fails, the log has its name again.
func Rotate(path string, maxFiles int, reopen func() error) error {
	old, err := rotatedFiles(path)
	if err != nil {
		return err
	}
	for len(old) > max(0, maxFiles-2) {
		if err := os.Remove(old[0]); err != nil && !os.IsNotExist(err) {
			return err
		}
		old = old[1:]
	}
	for _, f := range old {
		if !strings.HasSuffix(f, ".gz") {
			if err := compress(f); err != nil {
				return err
			}
		}
	}
	now := path + "." + time.Now().Format("20060102-150405")
	if err := os.Rename(path, now); err != nil {
		return err
	}
	if err := reopen(); err != nil {
		_ = os.Rename(now, path)
		return fmt.Errorf("reopen log: %w", err)
	}
	return nil
}

// rotatedFiles lists the rotated files of a log, oldest first.
func rotatedFiles(path string) ([]string, error) {
	all, err := filepath.Glob(path + ".*")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range all {
		if strings.HasSuffix(f, ".tmp") {
			_ = os.Remove(f)
			continue
		}
		out = append(out, f)
	}
	sort.Strings(out)
	return out, nil
}

func compress(path string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := path + ".tmp"
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	z := gzip.NewWriter(out)
	_, err = io.Copy(z, in)
	for _, c := range []io.Closer{z, out} {
		if e := c.Close(); err == nil {
			err = e
		}
	}
	if err == nil {
		err = os.Rename(tmp, path+".gz")
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("compress log: %w", err)
	}
	return os.Remove(path)
}
