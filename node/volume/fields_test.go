package volume

import (
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestBinaryDataAndImmutableObjects(t *testing.T) {
	cm := configMap("cm", map[string]string{"text": "a"})
	cm.BinaryData, cm.Immutable = map[string][]byte{"raw": {0, 255}}, ptr.To(true)
	m, _ := newManager(t, cm)
	run(t, m)
	pod := podWith("p", configMapVolume("cm"))
	dir := setUp(t, m, pod)["cm"].HostPath
	if read(t, dir, "raw") != "\x00\xff" || read(t, dir, "text") != "a" {
		t.Errorf("raw %q, text %q", read(t, dir, "raw"), read(t, dir, "text"))
	}
	tearDown(t, m, pod)
	if _, o := objectOf(cm); !o.immutable {
		t.Error("BinaryData, Immutable: a ConfigMap that cannot change is taken for one that can")
	}
	if _, o := objectOf(&v1.Secret{Immutable: ptr.To(true)}); !o.immutable {
		t.Error("Immutable: a Secret that cannot change is taken for one that can")
	}
}

func TestVolumeDevicesAreGivenToTheRuntime(t *testing.T) {
	m, _ := newManager(t)
	c := &v1.Container{Name: "c", VolumeDevices: []v1.VolumeDevice{{Name: "disk", DevicePath: "/dev/mine"}}}
	got, err := m.ContainerDevices(c, Mounts{"disk": {HostPath: "/dev/loop7", Block: true, ReadOnly: true}})
	if err != nil || len(got) != 1 || got[0].ContainerPath != "/dev/mine" || got[0].HostPath != "/dev/loop7" || got[0].Permissions != "r" {
		t.Errorf("%v: %v", got, err)
	}
	if _, err := m.ContainerDevices(c, Mounts{"disk": {HostPath: "/srv"}}); err == nil {
		t.Error("a directory was given as a device")
	}
}

func TestFSGroupChangePolicyLeavesATreeAlone(t *testing.T) {
	dir := t.TempDir()
	pod := podWith("p")
	group := func(policy v1.PodFSGroupChangePolicy) uint32 {
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](66), FSGroupChangePolicy: ptr.To(policy)}
		if err := applyFSGroup(pod, dir); err != nil {
			t.Fatal(err)
		}
		return stat(t, filepath.Join(dir, "late")).Gid
	}
	if err := ownTree(dir, 66, false); err != nil {
		t.Fatal(err)
	}
	late := filepath.Join(dir, "late")
	if err := os.WriteFile(late, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(late, -1, 0); err != nil { // the directory gives its own group
		t.Fatal(err)
	}
	if gid := group(v1.FSGroupChangeOnRootMismatch); gid == 66 {
		t.Error("OnRootMismatch: the root belongs to the group, and its files were changed")
	}
	if gid := group(v1.FSGroupChangeAlways); gid != 66 {
		t.Errorf("Always: the group is %d", gid)
	}
}
