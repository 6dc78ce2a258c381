package volume

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func TestAVolumeForOnePodIsRefusedToASecond(t *testing.T) {
	claim, pv := localClaim(t.TempDir())
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}
	m, client := newManager(t, claim, pv)
	first, second := claimPod(), claimPod()
	second.UID = "uid-second"
	setUp(t, m, first)
	if _, err := m.SetUp(t.Context(), second); !errors.Is(err, errExclusive) {
		t.Errorf("a second pod gets it: %v", err)
	}
	setUp(t, m, first) // its own pod has it again and again

	// After a restart of the agent, the second pod may come first: the disk says whose the volume is.
	cfg := m.cfg
	cfg.Client = client
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	mark := filepath.Join(cfg.RootDir, "pods", string(first.UID), volumesDir, "kubernetes.io~csi", pv.Name)
	if err := os.MkdirAll(mark, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := again.SetUp(t.Context(), second); !errors.Is(err, errExclusive) {
		t.Errorf("after a restart a second pod gets it: %v", err)
	}
	setUp(t, again, first)
	tearDown(t, again, first)
	setUp(t, again, second)
	tearDown(t, again, second)
}

func TestAVolumeForOneNodeIsForAllItsPods(t *testing.T) {
	claim, pv := localClaim(t.TempDir())
	pv.Spec.AccessModes = []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	m, _ := newManager(t, claim, pv)
	first, second := claimPod(), claimPod()
	second.UID = "uid-second"
	setUp(t, m, first)
	setUp(t, m, second)
}
