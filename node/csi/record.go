package csi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"
)

// recordName is the file beside a mount that says whose it is. The name and the keys are upstream's.
const recordName = "vol_data.json"

// record is what is kept of a volume that is staged, or that a pod uses.
type record struct {
	Driver     string    `json:"driverName"`
	Handle     string    `json:"volumeHandle"`
	Volume     string    `json:"specVolID"` // the PersistentVolume, or the pod's volume
	Attachment string    `json:"attachmentID,omitempty"`
	Lifecycle  string    `json:"volumeLifecycleMode,omitempty"`
	Pod        types.UID `json:"podUID,omitempty"` // empty for a staged volume
	Target     string    `json:"target"`           // what the driver was, or is to be, asked to mount
	Ready      bool      `json:"ready,omitempty"`  // mounted, and given to the pod's group
}

func (r record) key() volumeKey { return volumeKey{r.Driver, r.Handle} }

// read returns the record in dir; the error is fs.ErrNotExist when there is none.
func readRecord(dir string) (record, error) {
	var r record
	b, err := os.ReadFile(filepath.Join(dir, recordName))
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(b, &r); err != nil {
		return r, fmt.Errorf("%s: %w", filepath.Join(dir, recordName), err)
	}
	return r, nil
}

// write puts the record into dir, which it makes: whole, and on the disk before it returns.
func (r record) write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	b, err := json.Marshal(r)
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(dir, "."+recordName)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // fails once it is renamed
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), filepath.Join(dir, recordName))
}

// drop removes the record from dir, and dir.
func dropRecord(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries { // the record, and what an interrupted write left
		if strings.HasPrefix(strings.TrimPrefix(e.Name(), "."), recordName) {
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}

func (n *Node) podVolumesDir(uid types.UID) string {
	return filepath.Join(n.cfg.RootDir, "pods", string(uid), "volumes", "kubernetes.io~csi")
}

func (n *Node) pluginDir() string {
	return filepath.Join(n.cfg.RootDir, "plugins", "kubernetes.io", "csi")
}

const blockDir = "volumeDevices"

// target is where a pod's use of a volume is mounted.
func (n *Node) target(uid types.UID, volume string, block bool) string {
	if block {
		return filepath.Join(n.pluginDir(), blockDir, "publish", volume, string(uid))
	}
	return filepath.Join(n.podVolumesDir(uid), volume, "mount")
}

// stagingDir holds the record of a staged volume and, in globalmount, what the driver mounts.
func (n *Node) stagingDir(driver, handle string) string {
	sum := sha256.Sum256([]byte(handle))
	return filepath.Join(n.pluginDir(), driver, hex.EncodeToString(sum[:]))
}

// podRecords lists what is recorded of a pod, by directory.
func (n *Node) podRecords(uid types.UID) (map[string]record, error) {
	return recordsIn(filepath.Join(n.podVolumesDir(uid), "*"))
}

// allPodRecords lists what is recorded of all pods: a look at one directory for each pod of this node.
func (n *Node) allPodRecords() (map[string]record, error) {
	return recordsIn(filepath.Join(n.cfg.RootDir, "pods", "*", "volumes", "kubernetes.io~csi", "*"))
}

// stagedRecords lists the staged volumes.
func (n *Node) stagedRecords() (map[string]record, error) {
	return recordsIn(filepath.Join(n.pluginDir(), "*", "*"))
}

func recordsIn(pattern string) (map[string]record, error) {
	dirs, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	out := map[string]record{}
	var errs []error
	for _, dir := range dirs {
		r, err := readRecord(dir)
		switch {
		case err == nil:
			out[dir] = r
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errNotDir):
			errs = append(errs, err)
		}
	}
	return out, errors.Join(errs...)
}

// usedByOther reports whether another pod's record names the volume.
func (n *Node) usedByOther(key volumeKey, but types.UID) (bool, error) {
	all, err := n.allPodRecords()
	if err != nil {
		return true, err
	}
	for _, r := range all {
		if r.key() == key && r.Pod != but {
			return true, nil
		}
	}
	return false, nil
}
