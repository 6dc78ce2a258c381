package volume

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	dataLink    = "..data"     // the symlink that makes a payload current
	dataLinkTmp = "..data_tmp" // its successor, renamed over it
	maxPathLen  = 4096
)

// file is one file of a payload.
type file struct {
	data []byte
	mode os.FileMode // permission bits
	uid  *int64      // owner; nil means root
}

// payload is the content of a volume by relative path.
type payload map[string]file

var errPayloadPath = errors.New("invalid path in volume")

// validate refuses paths that leave the volume or clash with the writer's own names.
func (p payload) validate() error {
	for path := range p {
		switch {
		case path == "":
			return fmt.Errorf("%w: must not be empty", errPayloadPath)
		case filepath.IsAbs(path):
			return fmt.Errorf("%w: must be relative: %s", errPayloadPath, path)
		case len(path) > maxPathLen:
			return fmt.Errorf("%w: longer than %d bytes", errPayloadPath, maxPathLen)
		case strings.HasPrefix(filepath.Clean(path), ".."):
			return fmt.Errorf("%w: must not start with '..': %s", errPayloadPath, path)
		case filepath.Clean(path) == ".", strings.IndexByte(path, 0) >= 0, strings.HasSuffix(path, "/"):
			return fmt.Errorf("%w: must name a file: %q", errPayloadPath, path)
		}
		for _, part := range strings.Split(path, "/") {
			if part == ".." {
				return fmt.Errorf("%w: must not contain '..': %s", errPayloadPath, path)
			}
		}
	}
	return nil
}

func (p payload) cleaned() payload {
	out := make(payload, len(p))
	for path, f := range p {
		out[filepath.Clean(path)] = f
	}
	return out
}

// writeAtomic makes p the content of dir, in one step for readers: files live in a directory named by time, the
// symlink ..data points to it, and the names users see point through ..data. Nothing is written when p is there
// already. Group ownership is given before the switch.
//
//	dir/key        -> ..data/key
//	dir/..data     -> ..2026_11_21_10_00_00.123456789
//	dir/..2026_11_21_10_00_00.123456789/key
func writeAtomic(dir string, p payload, group *int64) error {
	if err := p.validate(); err != nil {
		return err
	}
	p = p.cleaned()
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if strings.ContainsRune(old, '/') || (old != "" && !strings.HasPrefix(old, "..")) {
		return fmt.Errorf("volume %s: unexpected target of %s: %q", dir, dataLink, old)
	}
	if old == "" || !samePayload(filepath.Join(dir, old), p) {
		fresh, err := os.MkdirTemp(dir, time.Now().UTC().Format("..2006_01_02_15_04_05."))
		if err != nil {
			return err
		}
		if err := fillAndSwitch(dir, fresh, p, group); err != nil {
			_ = os.RemoveAll(fresh)
			return err
		}
		old = filepath.Base(fresh)
	}
	if err := linkNames(dir, p); err != nil {
		return err
	}
	if err := dropNames(dir, p); err != nil {
		return err
	}
	return dropStamps(dir, old)
}

func fillAndSwitch(dir, fresh string, p payload, group *int64) error {
	if err := os.Chmod(fresh, 0o755); err != nil {
		return err
	}
	for path, f := range p {
		if err := writeFile(fresh, path, f); err != nil {
			return err
		}
	}
	if group != nil {
		if err := ownTree(fresh, *group, true); err != nil {
			return err
		}
	}
	tmp := filepath.Join(dir, dataLinkTmp)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(fresh), tmp); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, dataLink))
}

func writeFile(root, path string, f file) error {
	full := filepath.Join(root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		return err
	}
	out, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	if f.uid != nil && err == nil {
		err = out.Chown(int(*f.uid), -1)
	}
	if err == nil {
		err = unix.Fchmod(int(out.Fd()), uint32(f.mode.Perm()))
	}
	return errors.Join(err, out.Close())
}

// samePayload tells whether root holds exactly the files of p with their content.
func samePayload(root string, p payload) bool {
	found := 0
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		f, ok := p[rel]
		if !ok {
			return errors.New("not in the payload")
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if !bytes.Equal(data, f.data) {
			return errors.New("other content")
		}
		found++
		return nil
	})
	return err == nil && found == len(p)
}

// linkNames makes the names that users see: one symlink for the first part of each path.
func linkNames(dir string, p payload) error {
	for path := range p {
		name, _, _ := strings.Cut(path, "/")
		link, want := filepath.Join(dir, name), filepath.Join(dataLink, name)
		if got, err := os.Readlink(link); err == nil && got == want {
			continue
		}
		if err := os.Symlink(want, link); err != nil {
			return err
		}
	}
	return nil
}

// dropNames removes the symlinks through ..data whose target p no longer has.
func dropNames(dir string, p payload) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for path := range p {
		name, _, _ := strings.Cut(path, "/")
		keep[name] = true
	}
	for _, e := range entries {
		if e.Type()&os.ModeSymlink == 0 || keep[e.Name()] || strings.HasPrefix(e.Name(), "..") {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// dropStamps removes what earlier writes left, interrupted ones too.
func dropStamps(dir, current string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), "..") && e.Name() != current {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
