package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"
)

// newManager returns a manager on a fake API with objs, whose mounts are gone when the test ends.
func newManager(t *testing.T, objs ...runtime.Object) (*Manager, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset(objs...)
	root := t.TempDir()
	m, err := New(Config{
		RootDir: root, NodeName: "n1", Client: client,
		NodeAllocatable: func() v1.ResourceList {
			return v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi")}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unmountBelow(m.cfg.RootDir); err != nil {
			t.Error(err)
		}
	})
	return m, client
}

// run runs the manager until the test ends.
func run(t *testing.T, m *Manager) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

func podWith(name string, volumes ...v1.Volume) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": "x"}}}
	c := v1.Container{Name: "c"}
	for _, v := range volumes {
		c.VolumeMounts = append(c.VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/mnt/" + v.Name})
	}
	pod.Spec = v1.PodSpec{Volumes: volumes, Containers: []v1.Container{c}, ServiceAccountName: "sa", NodeName: "n1"}
	return pod
}

func configMap(name string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: data}
}

func configMapVolume(name string) v1.Volume {
	return v1.Volume{Name: name, VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{
		LocalObjectReference: v1.LocalObjectReference{Name: name}, DefaultMode: ptr.To[int32](0o644)}}}
}

func setUp(t *testing.T, m *Manager, pod *v1.Pod) Mounts {
	t.Helper()
	mounts, err := m.SetUp(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	return mounts
}

func tearDown(t *testing.T, m *Manager, pod *v1.Pod) {
	t.Helper()
	if err := m.TearDown(t.Context(), pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(m.podDir(pod.UID)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the pod's directory is still there: %v", err)
	}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func stat(t *testing.T, path string) syscall.Stat_t {
	t.Helper()
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		t.Fatal(path, err)
	}
	return st
}

func TestEmptyDirIsForEverybodyAndKeepsItsContent(t *testing.T) {
	m, _ := newManager(t)
	pod := podWith("p", v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	dir := setUp(t, m, pod)["e"].HostPath
	if mode := stat(t, dir).Mode & 0o7777; mode != 0o777 {
		t.Fatalf("mode %o", mode)
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := New(m.cfg) // the agent starts again
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, setUp(t, again, pod)["e"].HostPath, "f"); got != "x" {
		t.Fatal(got)
	}
	tearDown(t, again, pod)
	tearDown(t, again, pod)
}

func TestEmptyDirInMemoryHasTheSizeAndGroupAskedFor(t *testing.T) {
	m, _ := newManager(t)
	pod := podWith("p", v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{
		Medium: v1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi"))}}})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](1234)}
	dir := setUp(t, m, pod)["e"].HostPath
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	if fs.Type != unix.TMPFS_MAGIC || int64(fs.Blocks)*fs.Bsize != 8<<20 {
		t.Fatalf("type %x size %d", fs.Type, int64(fs.Blocks)*fs.Bsize)
	}
	if st := stat(t, dir); st.Gid != 1234 || st.Mode&0o7777 != 0o2777 {
		t.Fatalf("gid %d mode %o", st.Gid, st.Mode)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), make([]byte, 9<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("more than the limit was written: %v", err)
	}
	tearDown(t, m, pod)
}

func TestHostPathTypesAreCheckedOrMade(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(path("file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mknod(path("char"), syscall.S_IFCHR|0o600, 1<<8|3); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		path string
		want v1.HostPathType
		err  string
	}{
		{path("absent"), v1.HostPathUnset, ""},
		{path("made/deep"), v1.HostPathDirectoryOrCreate, ""},
		{path("made/deep"), v1.HostPathDirectory, ""},
		{path("made/file"), v1.HostPathFileOrCreate, ""},
		{path("made/file"), v1.HostPathFile, ""},
		{path("absent"), v1.HostPathDirectory, "hostPath type check failed: " + path("absent") + " is not a directory"},
		{path("file"), v1.HostPathDirectoryOrCreate, "hostPath type check failed: " + path("file") + " is not a directory"},
		{dir, v1.HostPathFileOrCreate, "hostPath type check failed: " + dir + " is not a file"},
		{path("file"), v1.HostPathSocket, "hostPath type check failed: " + path("file") + " is not a socket file"},
		{path("char"), v1.HostPathCharDev, ""},
		{path("char"), v1.HostPathBlockDev, "hostPath type check failed: " + path("char") + " is not a block device"},
		{dir, "Odd", "Odd is an invalid volume type"},
	}
	for _, c := range cases {
		err := checkHostPath(c.path, &c.want)
		if got := fmt.Sprint(err); (c.err == "" && err != nil) || (c.err != "" && got != c.err) {
			t.Errorf("%s as %s: %v, want %q", c.path, c.want, err, c.err)
		}
	}
}

func TestFailedMountNamesTheVolumeAndTheReason(t *testing.T) {
	m, _ := newManager(t)
	pod := podWith("p", configMapVolume("absent"))
	_, err := m.SetUp(t.Context(), pod)
	if want := `MountVolume.SetUp failed for volume "absent" : configmap "absent" not found`; err == nil || err.Error() != want {
		t.Fatalf("%v, want %s", err, want)
	}
	tearDown(t, m, pod)
}

func TestConfigMapVolumeFollowsItsSource(t *testing.T) {
	m, client := newManager(t, configMap("cm", map[string]string{"a": "1", "b": "2"}))
	run(t, m)
	pod := podWith("p", configMapVolume("cm"))
	vol := setUp(t, m, pod)["cm"]
	if !vol.ReadOnly || read(t, vol.HostPath, "a") != "1" {
		t.Fatalf("%+v", vol)
	}
	api := client.CoreV1().ConfigMaps("ns")
	if _, err := api.Update(t.Context(), configMap("cm", map[string]string{"a": "new", "c": "3"}), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new content shows and b is gone", func() bool {
		data, _ := os.ReadFile(filepath.Join(vol.HostPath, "a"))
		_, err := os.Lstat(filepath.Join(vol.HostPath, "b"))
		return string(data) == "new" && errors.Is(err, os.ErrNotExist)
	})
	if err := api.Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.Create(t.Context(), configMap("cm", map[string]string{"a": "reborn"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a ConfigMap made again shows", func() bool {
		data, _ := os.ReadFile(filepath.Join(vol.HostPath, "a"))
		return string(data) == "reborn"
	})
	tearDown(t, m, pod)
	m.objects.mu.Lock()
	defer m.objects.mu.Unlock()
	if len(m.objects.watched) != 0 {
		t.Fatal("a watch outlived its last user")
	}
}

func TestItemsModesAndOptional(t *testing.T) {
	m, _ := newManager(t, configMap("cm", map[string]string{"a": "1", "b": "2"}))
	v := configMapVolume("cm")
	v.ConfigMap.Items = []v1.KeyToPath{{Key: "a", Path: "deep/er/x", Mode: ptr.To[int32](0o400)}, {Key: "b", Path: "y"}}
	missing := configMapVolume("none")
	missing.ConfigMap.Optional = ptr.To(true)
	pod := podWith("p", v, missing)
	mounts := setUp(t, m, pod)
	file := filepath.Join(mounts["cm"].HostPath, "deep/er/x")
	if read(t, file) != "1" || stat(t, file).Mode&0o7777 != 0o400 {
		t.Fatalf("mode %o", stat(t, file).Mode)
	}
	if names, err := filepath.Glob(mounts["none"].HostPath + "/[^.]*"); err != nil || len(names) != 0 {
		t.Fatal(names, err)
	}
	bad := configMapVolume("cm")
	bad.ConfigMap.Items = []v1.KeyToPath{{Key: "zz", Path: "y"}}
	_, err := m.SetUp(t.Context(), podWith("q", bad))
	if err == nil || !strings.HasSuffix(err.Error(), "configmap references non-existent config key: zz") {
		t.Fatal(err)
	}
}

func projected() v1.Volume {
	return v1.Volume{Name: "proj", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{
		DefaultMode: ptr.To[int32](0o644),
		Sources: []v1.VolumeProjection{
			{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr.To[int64](600), Audience: "a"}},
			{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: v1.LocalObjectReference{Name: "cm"}}},
			{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{
				{Path: "ns", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.namespace"}},
				{Path: "label", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels['app']"}},
				{Path: "cpu", ResourceFieldRef: &v1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu", Divisor: resource.MustParse("1m")}},
			}}},
		}}}}
}

// serveTokens makes the fake API answer TokenRequests with numbered tokens that live for life.
func serveTokens(client *fake.Clientset, life time.Duration) {
	n := 0
	client.PrependReactor("create", "serviceaccounts", func(a k8stesting.Action) (bool, runtime.Object, error) {
		tr := a.(k8stesting.CreateAction).GetObject().(*authv1.TokenRequest)
		n++
		tr.Status = authv1.TokenRequestStatus{
			Token:               fmt.Sprintf("token-%d-%s-%s", n, tr.Spec.BoundObjectRef.Name, strings.Join(tr.Spec.Audiences, ",")),
			ExpirationTimestamp: metav1.NewTime(time.Now().Add(life)),
		}
		return true, tr, nil
	})
}

func TestProjectedVolume(t *testing.T) {
	m, client := newManager(t, configMap("cm", map[string]string{"ca.crt": "CA"}))
	serveTokens(client, 10*time.Minute)
	pod := podWith("p", projected())
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](77)}
	dir := setUp(t, m, pod)["proj"].HostPath
	for name, want := range map[string]string{"token": "token-1-p-a", "ca.crt": "CA", "ns": "ns", "label": "x", "cpu": "2000"} {
		if got := read(t, dir, name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if st := stat(t, filepath.Join(dir, "token")); st.Mode&0o777 != 0o640 || st.Gid != 77 {
		t.Errorf("token has mode %o, group %d", st.Mode&0o777, st.Gid)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("a token lies on disk: %v", err)
	}
	newer := pod.DeepCopy()
	newer.Labels["app"] = "y"
	setUp(t, m, newer)
	if read(t, dir, "label") != "y" || read(t, dir, "token") != "token-1-p-a" {
		t.Error("a new label does not show, or the token was asked for again")
	}
	tearDown(t, m, pod)
}

func TestTokenIsRefreshedAtFourFifthsOfItsLife(t *testing.T) {
	m, client := newManager(t, configMap("cm", nil))
	serveTokens(client, 5*time.Second)
	run(t, m)
	pod := podWith("p", projected())
	begun := time.Now()
	dir := setUp(t, m, pod)["proj"].HostPath
	eventually(t, "the next token", func() bool { return !strings.HasPrefix(read(t, dir, "token"), "token-1-") })
	if d := time.Since(begun); d < 3*time.Second { // four; how much later depends on what else the machine does
		t.Fatalf("refreshed after %v", d)
	}
	asked := time.Unix(1000, 0)
	if got := refreshTime(asked, asked.Add(time.Hour)).Sub(asked); got != 48*time.Minute {
		t.Fatal(got)
	}
	if got := refreshTime(asked, asked.Add(999*time.Hour)).Sub(asked); got != maxTokenAge {
		t.Fatal(got)
	}
}

func TestTokensFollowTheWallClock(t *testing.T) {
	m, client := newManager(t, configMap("cm", nil))
	serveTokens(client, time.Hour)
	run(t, m)
	pod := podWith("p", projected())
	dir := setUp(t, m, pod)["proj"].HostPath
	first := read(t, dir, "token")
	m.mu.Lock()
	st := m.pods[pod.UID]
	m.mu.Unlock()
	st.mu.Lock()
	for _, held := range st.tokens { // as it looks when the clock was set 400 days on
		for _, at := range []*time.Time{&held.asked, &held.refresh, &held.expires} {
			*at = at.Add(-400 * 24 * time.Hour)
		}
	}
	st.mu.Unlock()
	m.ClockSet()
	eventually(t, "a new token at once", func() bool { return read(t, dir, "token") != first })

	asked := time.Unix(1e9, 0)
	held := token{asked: asked, refresh: asked.Add(48 * time.Minute), expires: asked.Add(time.Hour)}
	for by, want := range map[time.Duration]bool{0: true, 47 * time.Minute: true, 49 * time.Minute: false, -30 * time.Second: true, -24 * time.Hour: false} {
		if held.fresh(asked.Add(by)) != want {
			t.Errorf("%v after it was asked for: fresh is %v", by, !want)
		}
	}
}

func TestSecretFilesBelongToTheGroup(t *testing.T) {
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{"k": {0, 1, 255}}}
	m, _ := newManager(t, secret)
	pod := podWith("p", v1.Volume{Name: "s", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o400)}}})
	pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: ptr.To[int64](55)}
	file := filepath.Join(setUp(t, m, pod)["s"].HostPath, "k")
	if st := stat(t, file); st.Gid != 55 || st.Mode&0o777 != 0o440 || read(t, file) != "\x00\x01\xff" {
		t.Fatalf("gid %d mode %o", st.Gid, st.Mode)
	}
	tearDown(t, m, pod)
}

func TestClaims(t *testing.T) {
	path := t.TempDir()
	claim := func(name string) *v1.PersistentVolumeClaim {
		return &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("u-" + name)},
			Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv-" + name}, Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound}}
	}
	pv := func(name string) *v1.PersistentVolume {
		return &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv-" + name}, Spec: v1.PersistentVolumeSpec{
			ClaimRef:               &v1.ObjectReference{UID: types.UID("u-" + name)},
			PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: path}}}}
	}
	pending, stolen := claim("pending"), pv("stolen")
	pending.Status.Phase = v1.ClaimPending
	stolen.Spec.ClaimRef.UID = "other"
	m, _ := newManager(t, claim("good"), pv("good"), pending, claim("stolen"), stolen)
	for name, want := range map[string]string{
		"good":    "",
		"pending": "PVC is not bound",
		"none":    `failed to fetch PVC from API server: persistentvolumeclaims "none" not found`,
		"stolen":  "found PV object pv-stolen but its pv.Spec.ClaimRef.UID other does not point to claim.UID u-stolen",
	} {
		pod := podWith("pod-"+name, v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name, ReadOnly: true}}})
		mounts, err := m.SetUp(t.Context(), pod)
		switch {
		case want == "" && (err != nil || mounts["v"].HostPath != path || !mounts["v"].ReadOnly):
			t.Errorf("%s: %v %v", name, mounts, err)
		case want != "" && (err == nil || !strings.HasSuffix(err.Error(), "error processing PVC ns/"+name+": "+want)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestFSGroupOnAPersistentVolume(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	for _, p := range []string{filepath.Join(dir, "f"), outside} {
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "d/link")); err != nil {
		t.Fatal(err)
	}
	if err := ownTree(dir, 99, false); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]uint32{"f": 0o660, "d": 0o2770} {
		if st := stat(t, filepath.Join(dir, path)); st.Gid != 99 || st.Mode&0o7777 != mode {
			t.Errorf("%s: gid %d mode %o", path, st.Gid, st.Mode&0o7777)
		}
	}
	if st := stat(t, outside); st.Gid == 99 || st.Mode&0o777 != 0o600 {
		t.Error("a symlink led out of the volume")
	}
	if !rootMatches(dir, 99, false) || rootMatches(dir, 98, false) {
		t.Error("rootMatches")
	}
}

func TestOrphansAreCleanedUp(t *testing.T) {
	m, _ := newManager(t)
	mem := v1.Volume{Name: "m", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}}
	old, kept := podWith("old", mem), podWith("kept", mem)
	setUp(t, m, old)
	setUp(t, m, kept)
	again, err := New(m.cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.CleanUpOrphans(t.Context(), func(uid types.UID) bool { return uid == kept.UID }); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.podDir(old.UID)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the orphan is still there:", err)
	}
	if _, err := os.Stat(m.podDir(kept.UID)); err != nil {
		t.Error(err)
	}
	if err := again.TearDown(t.Context(), "../../etc"); err == nil {
		t.Error("a uid with a slash was taken")
	}
}

func TestTearDownLeavesWhatIsOutsideAlone(t *testing.T) {
	m, _ := newManager(t)
	pod := podWith("p", v1.Volume{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	dir := setUp(t, m, pod)["e"].HostPath
	precious := t.TempDir()
	if err := os.WriteFile(filepath.Join(precious, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	bind := filepath.Join(dir, "bi nd")
	if err := os.Mkdir(bind, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(precious, bind, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := RemoveTree(dir); !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EBUSY) {
		t.Fatalf("removal crossed a mount: %v", err)
	}
	tearDown(t, m, pod)
	if _, err := os.Stat(filepath.Join(precious, "f")); err != nil {
		t.Fatal(err)
	}
}

func TestVeryDeepTreesAreRemoved(t *testing.T) {
	parent := t.TempDir()
	root := filepath.Join(parent, "t")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_PATH, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2000 {
		if err := unix.Mkdirat(fd, "d", 0o700); err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(fd, "d", unix.O_PATH, 0)
		unix.Close(fd)
		if err != nil {
			t.Fatal(err)
		}
		fd = next
	}
	unix.Close(fd)
	if err := RemoveTree(root); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(parent); err != nil || len(left) != 0 {
		t.Fatal(left, err)
	}
}
