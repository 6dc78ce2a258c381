package volume

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"
)

func emptyDirPod(name string) *v1.Pod {
	return podWith(name, v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
}

func TestSubPathBindsWhatIsInsideTheVolumeOnly(t *testing.T) {
	m, _ := newManager(t)
	pod := emptyDirPod("p")
	mounts := setUp(t, m, pod)
	dir := mounts["e"].HostPath
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("s"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"abs": secret, "up": "../../../../..", "inside": "real/file", "dangling": "/nowhere/x"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "real"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "real/file"), []byte("in"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := &pod.Spec.Containers[0]
	env := []*runtimeapi.KeyValue{{Key: "POD", Value: []byte("p-0")}}
	cases := []struct {
		mount v1.VolumeMount
		err   string
	}{
		{v1.VolumeMount{SubPath: "inside"}, ""},
		{v1.VolumeMount{SubPath: "new/dir"}, ""},
		{v1.VolumeMount{SubPathExpr: "logs-$(POD)"}, ""},
		{v1.VolumeMount{SubPathExpr: "$(NONE)"}, "missing value for NONE"},
		{v1.VolumeMount{SubPath: "abs"}, `failed to prepare subPath for volumeMount "e" of container "c"`},
		{v1.VolumeMount{SubPath: "up/etc"}, `failed to prepare subPath for volumeMount "e" of container "c"`},
		{v1.VolumeMount{SubPath: "dangling/y"}, `failed to prepare subPath for volumeMount "e" of container "c"`},
		{v1.VolumeMount{SubPath: "/etc"}, "error SubPath `/etc` must not be an absolute path"},
		{v1.VolumeMount{SubPath: "a/../.."}, "unable to provision SubPath `a/../..`: must not contain '..'"},
	}
	for _, tc := range cases {
		tc.mount.Name, tc.mount.MountPath = "e", "m"
		c.VolumeMounts = []v1.VolumeMount{tc.mount}
		got, _, err := m.ContainerMounts(pod, c, mounts, env)
		if tc.err != "" {
			if err == nil || err.Error() != tc.err {
				t.Errorf("%+v: %v, want %q", tc.mount, err, tc.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", tc.mount, err)
			continue
		}
		if got[0].ContainerPath != "/m" {
			t.Errorf("container path %s", got[0].ContainerPath)
		}
		if tc.mount.SubPath == "inside" && read(t, got[0].HostPath) != "in" {
			t.Error("subPath shows another file")
		}
	}
	if st := stat(t, filepath.Join(dir, "logs-p-0")); st.Mode&0o777 != 0o777 {
		t.Errorf("a subPath directory has mode %o", st.Mode)
	}
	tearDown(t, m, pod)
}

func TestSubPathOfAConfigMapIsBoundAnewForTheNextContainer(t *testing.T) {
	m, client := newManager(t, configMap("cm", map[string]string{"a": "1"}))
	run(t, m)
	pod := podWith("p", configMapVolume("cm"))
	c := &pod.Spec.Containers[0]
	c.VolumeMounts[0].SubPath = "a"
	mounts := setUp(t, m, pod)
	first, cleanup, err := m.ContainerMounts(pod, c, mounts, nil)
	if err != nil || read(t, first[0].HostPath) != "1" || !first[0].Readonly {
		t.Fatal(first, err)
	}
	if _, err := client.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap("cm", map[string]string{"a": "2"}), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "new content", func() bool { return read(t, mounts["cm"].HostPath, "a") == "2" })
	if read(t, first[0].HostPath) != "1" {
		t.Error("a bound file changed under its container")
	}
	second, _, err := m.ContainerMounts(pod, c, mounts, nil)
	if err != nil || read(t, second[0].HostPath) != "2" {
		t.Fatal(second, err)
	}
	again, undo, err := m.ContainerMounts(pod, c, mounts, nil)
	if err != nil || again[0].HostPath != second[0].HostPath {
		t.Fatal(again, err)
	}
	cleanup() // of a container long gone
	if read(t, second[0].HostPath) != "2" {
		t.Error("cleanup took away the bind of a later container")
	}
	undo()
	undo()
	if read(t, second[0].HostPath) != "" {
		t.Error("the bind of the last container is still there")
	}
	tearDown(t, m, pod)
}

func TestMountFlags(t *testing.T) {
	m, _ := newManager(t)
	pod := emptyDirPod("p")
	mounts := setUp(t, m, pod)
	c := &pod.Spec.Containers[0]
	try := func(vm v1.VolumeMount) (*runtimeapi.Mount, error) {
		vm.Name, vm.MountPath = "e", "/m"
		c.VolumeMounts = []v1.VolumeMount{vm}
		got, _, err := m.ContainerMounts(pod, c, mounts, nil)
		if err != nil {
			return nil, err
		}
		return got[0], nil
	}
	got, err := try(v1.VolumeMount{MountPropagation: ptr.To(v1.MountPropagationBidirectional)})
	if err != nil || got.Propagation != runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL {
		t.Error(got, err)
	}
	got, err = try(v1.VolumeMount{ReadOnly: true, RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)})
	if err != nil || !got.Readonly || !got.RecursiveReadOnly {
		t.Error(got, err)
	}
	if _, err = try(v1.VolumeMount{RecursiveReadOnly: ptr.To(v1.RecursiveReadOnlyEnabled)}); err == nil || !strings.Contains(err.Error(), "but it is not read-only") {
		t.Error(err)
	}
	c.VolumeMounts = []v1.VolumeMount{{Name: "other", MountPath: "/m"}}
	if _, _, err := m.ContainerMounts(pod, c, mounts, nil); err == nil || err.Error() != `cannot find volume "other" to mount into container "c"` {
		t.Error(err)
	}
}

func TestReadOnlyVolumesHoldTheMountPointsOfNestedOnes(t *testing.T) {
	m, _ := newManager(t, configMap("cm", map[string]string{"a": "1"}))
	pod := podWith("p", configMapVolume("cm"), v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{
		{Name: "cm", MountPath: "/etc/app"}, {Name: "e", MountPath: "/etc/app/cache"},
		{Name: "e", MountPath: "/etc/app/cache/deeper"}, {Name: "e", MountPath: "/etc/application"}, {Name: "e", MountPath: "/etc/app/cache-2/x"},
	}
	names, err := nestedMountPoints(pod, "cm")
	if err != nil || !reflect.DeepEqual(names, []string{"cache", "cache-2/x"}) {
		t.Fatal(names, err)
	}
	dir := setUp(t, m, pod)["cm"].HostPath
	for _, n := range names {
		if st, err := os.Stat(filepath.Join(dir, n)); err != nil || !st.IsDir() {
			t.Error(n, err)
		}
	}
	setUp(t, m, pod)
	tearDown(t, m, pod)
}

func TestAtomicWriterRefusesPathsThatLeaveTheVolume(t *testing.T) {
	for _, path := range []string{"", "/abs", "..", "../x", "..data", "a/../b", "a/..", ".", "./", "x/", strings.Repeat("a", 5000), "a\x00b"} {
		if err := (payload{path: {}}).validate(); !errors.Is(err, errPayloadPath) {
			t.Errorf("%q was taken: %v", path, err)
		}
	}
	for _, path := range []string{"a", "a/b", ".hidden", "a..b", "a/..b", "...x/y"[1:]} {
		if err := (payload{path: {}}).validate(); err != nil && !strings.HasPrefix(path, "..") {
			t.Errorf("%q: %v", path, err)
		}
	}
}

func FuzzAtomicWriterStaysInside(f *testing.F) {
	for _, s := range []string{"a", "a/b/c", "..", "../../x", "..data/x", "a/../../b", "//x", "a//b", "a/./b", "\x00", ".removed"} {
		f.Add(s, "content")
	}
	f.Fuzz(func(t *testing.T, path, content string) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "v")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		err := writeAtomic(dir, payload{path: {data: []byte(content), mode: 0o644}}, nil)
		if entries, rerr := os.ReadDir(parent); rerr != nil || len(entries) != 1 {
			t.Fatalf("something was written beside the volume: %v %v", entries, rerr)
		}
		if err != nil {
			return
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil || string(data) != content {
			t.Fatalf("%q: %q %v", path, data, err)
		}
		if err := writeAtomic(dir, payload{}, nil); err != nil {
			t.Fatal(err)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, "[^.]*")); len(left) != 0 {
			t.Fatalf("left %v", left)
		}
	})
}

func TestAnImageIsMountedByTheRuntime(t *testing.T) {
	m, _ := newManager(t)
	pod := podWith("p", v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "example.com/data:1"}}})
	pod.Spec.Containers[0].VolumeMounts = []v1.VolumeMount{{Name: "e", MountPath: "/m", SubPath: "sub"}}
	got, _, err := m.ContainerMounts(pod, &pod.Spec.Containers[0], setUp(t, m, pod), nil)
	if err != nil {
		t.Fatal(err)
	}
	if mount := got[0]; mount.HostPath != "" || mount.Image.GetImage() != "example.com/data:1" || mount.ImageSubPath != "sub" || !mount.Readonly {
		t.Errorf("%+v", mount)
	}
}
