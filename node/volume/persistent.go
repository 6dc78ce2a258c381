package volume

import (
	"errors"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// persistent says what is behind a pod's volume that is not only files of the pod.
type persistent struct {
	claim  string // empty for an inline volume of a CSI driver
	spec   string // the PersistentVolume, or the pod's volume
	csi    bool
	device string // a local volume's directory or device; empty for others
	block  bool
}

var errExclusive = errors.New("volume uses the ReadWriteOncePod access mode and is already in use by another pod")

// notePersistent notes which volume a pod's claim is bound to. It refuses a volume for one pod while another pod of this
// node has it: the scheduler is not asked about a pod that names its node, and a driver need not know pods.
func (m *Manager) notePersistent(uid types.UID, name string, b boundClaim) error {
	p := persistent{claim: b.claim.Name, spec: b.pv.Name, csi: b.pv.Spec.CSI != nil, block: isBlock(b.pv)}
	if b.pv.Spec.Local != nil {
		p.device = b.pv.Spec.Local.Path
	}
	exclusive := slices.Contains(b.pv.Spec.AccessModes, v1.ReadWriteOncePod)
	if exclusive {
		if found, err := m.mountedForAnother(uid, p.spec); err != nil || found {
			return errors.Join(err, errExclusive)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for other, volumes := range m.persistent {
		for _, used := range volumes {
			if exclusive && other != uid && used.claim != "" && used.spec == p.spec {
				return errExclusive
			}
		}
	}
	m.noteLocked(uid, name, p)
	return nil
}

// mountedForAnother reports whether the disk has a volume for another pod and not for this one. After a restart nothing
// else says so.
func (m *Manager) mountedForAnother(uid types.UID, pv string) (bool, error) {
	found, err := filepath.Glob(filepath.Join(m.cfg.RootDir, "pods", "*", volumesDir, "kubernetes.io~*", pv))
	own := slices.ContainsFunc(found, func(path string) bool { return m.podDir(uid) == filepath.Dir(filepath.Dir(filepath.Dir(path))) })
	return len(found) > 0 && !own, err
}

func (m *Manager) note(uid types.UID, name string, p persistent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLocked(uid, name, p)
}

func (m *Manager) noteLocked(uid types.UID, name string, p persistent) {
	if m.persistent[uid] == nil {
		m.persistent[uid] = map[string]persistent{}
	}
	m.persistent[uid][name] = p
}
