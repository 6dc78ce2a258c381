package userns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// PerPod is how many IDs a pod gets.
	PerPod = 65536
	// file holds a pod's range, in the pod's directory.
	file = "userns"
)

// Range is the host's IDs [First, First+PerPod) that are the pod's 0 to PerPod-1.
type Range struct{ First uint32 }

// Ranges hands out ranges. Its methods may be called at the same time.
type Ranges struct {
	podsDir string
	minimum int // how many pods must have room
	lookup  func() (Span, error)

	mu    sync.Mutex
	span  Span // Count is 0 until the first pod asks
	next  int  // where the search for a free range begins
	byPod map[types.UID]int
	used  map[int]types.UID
}

// New returns Ranges that keep their files in podsDir/<uid>. lookup says which IDs of the host are for pods; it is asked
// when the first pod needs some, and must leave room for pods pods.
func New(podsDir string, pods int, lookup func() (Span, error)) *Ranges {
	return &Ranges{podsDir: podsDir, minimum: pods, lookup: lookup, byPod: map[types.UID]int{}, used: map[int]types.UID{}}
}

// Take returns the pod's range: the one it has, or a free one.
func (r *Ranges) Take(pod types.UID) (Range, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.begin(); err != nil {
		return Range{}, err
	}
	if i, ok := r.byPod[pod]; ok {
		return r.span.at(i), nil
	}
	i, err := r.free()
	if err != nil {
		return Range{}, err
	}
	got := r.span.at(i)
	if err := r.write(pod, got); err != nil {
		return Range{}, err
	}
	r.byPod[pod], r.used[i], r.next = i, pod, i+1
	return got, nil
}

// Release frees the pod's range. Nothing of the pod may run any more.
func (r *Ranges) Release(pod types.UID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := os.Remove(r.path(pod)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("user namespace of a former pod: %w", err)
	}
	if i, ok := r.byPod[pod]; ok {
		delete(r.byPod, pod)
		delete(r.used, i)
	}
	return nil
}

// begin finds out which IDs there are and which pods have some. Called with r.mu held.
func (r *Ranges) begin() error {
	if r.span.Count > 0 {
		return nil
	}
	span, err := r.lookup()
	if err != nil {
		return err
	}
	if span.Count < r.minimum {
		return fmt.Errorf("the IDs for user namespaces are enough for %d pods, and this node takes %d", span.Count, r.minimum)
	}
	dirs, err := os.ReadDir(r.podsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	byPod, used := map[types.UID]int{}, map[int]types.UID{}
	for _, d := range dirs {
		pod := types.UID(d.Name())
		got, err := r.read(pod)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		i, ok := span.index(got)
		if other, taken := used[i]; !ok || taken {
			return fmt.Errorf("user namespace of pod %s: IDs from %d are not for pods, or pod %s has them: delete the pod", pod, got.First, other)
		}
		byPod[pod], used[i] = i, pod
	}
	r.span, r.byPod, r.used = span, byPod, used
	return nil
}

// free finds a range that no pod has. One that was just freed comes last: files with its IDs may be about.
func (r *Ranges) free() (int, error) {
	for n := range r.span.Count {
		i := (r.next + n) % r.span.Count
		if _, taken := r.used[i]; !taken {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no IDs are left for a user namespace: %d pods have some", r.span.Count)
}

// mapping is one line of the file.
type mapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type mappings struct {
	UIDs []mapping `json:"uidMappings"`
	GIDs []mapping `json:"gidMappings"`
}

func (r *Ranges) path(pod types.UID) string { return filepath.Join(r.podsDir, string(pod), file) }

func (r *Ranges) read(pod types.UID) (Range, error) {
	raw, err := os.ReadFile(r.path(pod))
	if err != nil {
		return Range{}, err
	}
	var m mappings
	if err := json.Unmarshal(raw, &m); err != nil {
		return Range{}, fmt.Errorf("user namespace of pod %s: %w", pod, err)
	}
	if len(m.UIDs) != 1 || len(m.GIDs) != 1 || m.UIDs[0] != m.GIDs[0] || m.UIDs[0].ContainerID != 0 || m.UIDs[0].Length != PerPod {
		return Range{}, fmt.Errorf("user namespace of pod %s: %s is not one range of %d IDs from 0", pod, r.path(pod), PerPod)
	}
	return Range{m.UIDs[0].HostID}, nil
}

// write makes the range durable. After a crash of the machine no other pod may get the range while files with its IDs exist.
func (r *Ranges) write(pod types.UID, got Range) error {
	m := []mapping{{HostID: got.First, Length: PerPod}}
	raw, err := json.Marshal(mappings{UIDs: m, GIDs: m})
	if err != nil {
		return err
	}
	path := r.path(pod)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := writeSynced(path+".tmp", raw); err != nil {
		return err
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return err
	}
	return syncFile(filepath.Dir(path))
}

func writeSynced(path string, raw []byte) error {
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		return err
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	return errors.Join(err, f.Close())
}
