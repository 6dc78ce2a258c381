package localcsi

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/node/volume"
)

const (
	dataName = "data"        // what pods see of a volume
	metaName = "volume.json" // beside it
	// newPrefix and gonePrefix begin the names of directories that are being made or removed. No volume's name begins so.
	newPrefix  = ".new-"
	gonePrefix = ".gone-"
	// keptFree is the part of the file system that is not promised to volumes, in percent.
	keptFree = 5
)

var (
	errNoVolume = errors.New("no such volume")
	errNoRoom   = errors.New("not enough room")
	errDiffers  = errors.New("a volume of that name exists and is of another size")
	errSmaller  = errors.New("a volume does not shrink")
)

// validID is what a volume can be called: one part of a path, and not hidden.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$`)

// idOf is the id of the volume that was asked for by name: the name, where it can be a directory's.
func idOf(name string) string {
	if validID.MatchString(name) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return "volume-" + hex.EncodeToString(sum[:])
}

// meta is what is kept of a volume.
type meta struct {
	Capacity int64 `json:"capacityBytes"`
}

// store keeps the directories of volumes.
type store struct {
	dir  string
	root *os.Root

	mu      sync.Mutex
	volumes map[string]meta
}

// openStore opens dir, which it makes, and removes what interrupted calls left there.
func openStore(dir string) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o700); err != nil { // nothing but this process goes through it
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s := &store{dir: dir, root: root, volumes: map[string]meta{}}
	if err := s.load(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

func (s *store) load() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		switch {
		case strings.HasPrefix(e.Name(), newPrefix), strings.HasPrefix(e.Name(), gonePrefix), strings.HasPrefix(e.Name(), volume.RemovedPrefix):
			errs = append(errs, volume.RemoveTree(filepath.Join(s.dir, e.Name())))
		case validID.MatchString(e.Name()) && e.IsDir():
			m, err := s.readMeta(e.Name())
			if err != nil {
				errs = append(errs, fmt.Errorf("volume %s: %w", e.Name(), err))
				continue
			}
			s.volumes[e.Name()] = m
		}
	}
	return errors.Join(errs...)
}

func (s *store) readMeta(id string) (m meta, err error) {
	b, err := s.root.ReadFile(id + "/" + metaName)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	return m, err
}

// writeMeta replaces the description of a volume in dir, whole and on the disk.
func (s *store) writeMeta(dir string, m meta) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	name := dir + "/" + metaName
	f, err := s.root.OpenFile(name+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return s.root.Rename(name+".new", name)
}

// create makes a volume of at least low bytes and, unless high is 0, at most high. One that is there and fits is as good.
func (s *store) create(name string, low, high int64) (id string, m meta, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id = idOf(name)
	if m, ok := s.volumes[id]; ok {
		if m.Capacity < low || high > 0 && m.Capacity > high {
			return id, m, fmt.Errorf("volume %s has %d bytes: %w", id, m.Capacity, errDiffers)
		}
		return id, m, nil
	}
	room, err := s.room()
	if err != nil {
		return id, m, err
	}
	if low > room {
		return id, m, fmt.Errorf("%w: %d bytes are asked for and %d are left", errNoRoom, low, room)
	}
	m.Capacity = low
	if err := s.make(id, m); err != nil {
		return id, m, err
	}
	s.volumes[id] = m
	return id, m, nil
}

// make makes the directory of a volume beside its place, so that it is there with all that belongs to it or not at all.
func (s *store) make(id string, m meta) error {
	fresh := newPrefix + id + "-" + rand.Text()
	if err := s.root.Mkdir(fresh, 0o700); err != nil {
		return err
	}
	err := s.root.Mkdir(fresh+"/"+dataName, 0o700)
	if err == nil {
		err = s.root.Chmod(fresh+"/"+dataName, 0o777) // as an emptyDir: any user of the pod's writes
	}
	if err == nil {
		err = s.writeMeta(fresh, m)
	}
	if err == nil {
		err = s.root.Rename(fresh, id)
	}
	if err == nil {
		err = s.sync()
	}
	if err != nil {
		return errors.Join(err, volume.RemoveTree(filepath.Join(s.dir, fresh)))
	}
	return nil
}

func (s *store) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// remove takes a volume away with all its content; one that is not there is as good. It is gone from its place at once.
// A removal that fails or is interrupted is ended by the next call, or at the next start.
func (s *store) remove(id string) error {
	if !validID.MatchString(id) {
		return nil
	}
	if err := s.takeAway(id); err != nil {
		return err
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), gonePrefix+id+"-") {
			errs = append(errs, volume.RemoveTree(filepath.Join(s.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

// takeAway renames a volume, so that it is no volume any more.
func (s *store) takeAway(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.root.Rename(id, gonePrefix+id+"-"+rand.Text())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	delete(s.volumes, id)
	if err != nil {
		return nil
	}
	return s.sync()
}

// expand makes a volume at least low bytes large, and returns its size.
func (s *store) expand(id string, low, high int64) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.volumes[id]
	switch {
	case !ok:
		return 0, errNoVolume
	case high > 0 && m.Capacity > high:
		return 0, errSmaller
	case low <= m.Capacity:
		return m.Capacity, nil
	}
	room, err := s.room()
	if err != nil {
		return 0, err
	}
	if more := low - m.Capacity; more > room {
		return 0, fmt.Errorf("%w: %d more bytes are asked for and %d are left", errNoRoom, more, room)
	}
	m.Capacity = low
	if err := s.writeMeta(id, m); err != nil {
		return 0, err
	}
	s.volumes[id] = m
	return low, nil
}

// get returns a volume.
func (s *store) get(id string) (meta, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.volumes[id]
	if !ok {
		return m, errNoVolume
	}
	return m, nil
}

// open opens what pods see of a volume. It follows no symlink, not to another volume either.
func (s *store) open(id string) (*os.File, error) {
	if _, err := s.get(id); err != nil {
		return nil, err
	}
	top, err := s.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer top.Close()
	name := id + "/" + dataName
	fd, err := unix.Openat2(int(top.Fd()), name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// free is how many bytes can still be promised.
func (s *store) free() (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.room()
}

// room is free, called with mu held.
func (s *store) room() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(s.dir, &st); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: s.dir, Err: err}
	}
	var promised int64
	for _, m := range s.volumes {
		promised += m.Capacity
	}
	return roomOf(int64(st.Blocks)*st.Bsize, int64(st.Bavail)*st.Bsize, promised), nil
}

// roomOf is what can be promised of a file system: what is left of it after what was promised, and at most what is free.
// How much of what was promised is written is not known without a look at every file.
func roomOf(total, available, promised int64) int64 {
	return max(0, min(available, total-total/100*keptFree-promised))
}
