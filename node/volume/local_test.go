package volume

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// localClaim is a claim bound to a local volume, larger than the claim says.
func localClaim(path string) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	claim, pv := csiClaim()
	pv.Spec.PersistentVolumeSource = v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}
	pv.Spec.Capacity, claim.Status.Capacity = storage("8Mi"), storage("8Mi")
	return claim, pv
}

func storage(q string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(q)}
}

func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// blockDevice returns an empty block device of 8 MiB.
func blockDevice(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, 8<<20); err != nil {
		t.Fatal(err)
	}
	device := command(t, "losetup", "--find", "--show", file)
	t.Cleanup(func() { command(t, "losetup", "--detach", device) })
	return device
}

func TestALocalDeviceIsFormattedAndMounted(t *testing.T) {
	device := blockDevice(t)
	claim, pv := localClaim(device)
	fsType := "ext3"
	pv.Spec.Local.FSType, pv.Spec.MountOptions = &fsType, []string{"noexec"}
	m, client := newManager(t, claim, pv)
	first, second := claimPod(), claimPod()
	second.UID = "uid-second"
	dir := setUp(t, m, first)["v"].HostPath
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := command(t, "findmnt", "--noheadings", "--output=FSTYPE,OPTIONS", dir); !strings.HasPrefix(got, "ext3") || !strings.Contains(got, "noexec") {
		t.Errorf("mounted with %q", got)
	}
	// A second pod of the node sees the same files, while the first has them and afterwards.
	again := setUp(t, m, second)["v"].HostPath
	tearDown(t, m, first)
	if got, err := os.ReadFile(filepath.Join(again, "f")); err != nil || string(got) != "kept" {
		t.Errorf("%q %v", got, err)
	}
	if mounted, err := isMountPoint(dir); err != nil || mounted {
		t.Errorf("it stays mounted for a pod that is gone: %v", err)
	}

	if got, err := m.Stats(t.Context(), second, "v"); err != nil || got.PVCRef.Name != "c" || *got.CapacityBytes > 8<<20 || *got.CapacityBytes < 6<<20 {
		t.Errorf("%+v %v", got, err)
	}
	// The administrator enlarges the device and its volume.
	var resized []string
	m.resize = func(device, dir string) error { resized = append(resized, device, dir); return nil }
	pv.Spec.Capacity = storage("32Mi")
	if _, err := client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.refresh(t.Context(), second.UID); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(resized, []string{device, again}) {
		t.Errorf("resized %q", resized)
	}
	now, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil || now.Status.Capacity.Storage().String() != "32Mi" || len(now.Status.Conditions) != 0 {
		t.Errorf("%+v %v", now.Status, err)
	}
	tearDown(t, m, second)
	if used, err := deviceMounted(device); err != nil || used {
		t.Errorf("the device stays mounted: %v", err)
	}
	if got, err := m.Stats(t.Context(), second, "v"); got != nil || err != nil {
		t.Errorf("a pod that is gone has figures: %+v %v", got, err)
	}
}

func TestALocalDirectoryIsMountedWithItsOptions(t *testing.T) {
	path := t.TempDir()
	claim, pv := localClaim(path)
	pv.Spec.MountOptions = []string{"noexec", "nosuid"}
	m, _ := newManager(t, claim, pv)
	pod := claimPod()
	dir := setUp(t, m, pod)["v"].HostPath
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil || dir == path || st.Flags&unix.ST_NOEXEC == 0 || st.Flags&unix.ST_NOSUID == 0 {
		t.Errorf("%s: flags %x %v", dir, st.Flags, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tearDown(t, m, pod)
	if _, err := os.Stat(filepath.Join(path, "f")); err != nil {
		t.Errorf("the volume's file is gone with its pod: %v", err)
	}
}

func TestAGroupIsNotGivenAgainToFilesOfARunningPod(t *testing.T) {
	path, group := t.TempDir(), int64(77)
	claim, pv := localClaim(path)
	m, _ := newManager(t, claim, pv)
	pod := claimPod()
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	setUp(t, m, pod)
	if err := os.Chown(path, -1, 78); err != nil { // by the pod
		t.Fatal(err)
	}
	if err := m.refresh(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if st := stat(t, path); st.Gid != 78 {
		t.Errorf("gid %d", st.Gid)
	}
}

func TestAGroupGetsALocalVolumeBehindALink(t *testing.T) {
	dir, group := t.TempDir(), int64(77)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	claim, pv := localClaim(link)
	m, _ := newManager(t, claim, pv)
	pod := claimPod()
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	if got := setUp(t, m, pod)["v"].HostPath; got != dir {
		t.Errorf("mounted from %s", got)
	}
	if st := stat(t, dir); st.Gid != 77 {
		t.Errorf("gid %d", st.Gid)
	}
}

func TestWhatCannotBeALocalVolume(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		file: "neither a directory nor a block device", "/dev/null": "neither a directory nor a block device",
		dir + "/none": "does not exist", dir + "/../x": "must not contain '..'",
	} {
		claim, pv := localClaim(path)
		m, _ := newManager(t, []runtime.Object{claim, pv}...)
		if _, err := m.SetUp(t.Context(), claimPod()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestFiguresOfADriversVolume(t *testing.T) {
	claim, pv := csiClaim()
	m, _ := newManager(t, claim, pv)
	m.cfg.CSI = &fakeCSI{dir: t.TempDir()}
	pod := claimPod()
	setUp(t, m, pod)
	got, err := m.Stats(t.Context(), pod, "v")
	if err != nil || got.Name != "v" || got.PVCRef.Name != "c" || got.PVCRef.Namespace != "ns" || *got.CapacityBytes != 100 || *got.UsedBytes != 40 || got.Inodes != nil {
		t.Errorf("%+v %v", got, err)
	}
	tearDown(t, m, pod)
}
