package localcsi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func newDriver(t *testing.T) *Driver {
	t.Helper()
	root := filepath.Join(t.TempDir(), strings.Repeat("a-directory-with-a-long-name/", 4)) // longer than a socket's path may be
	return reopen(t, root)
}

func reopen(t *testing.T, root string) *Driver {
	t.Helper()
	d, err := New(Config{Dir: filepath.Join(root, "volumes"), RootDir: root, NodeName: "n1"})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func plain(mode csipb.VolumeCapability_AccessMode_Mode) *csipb.VolumeCapability {
	return &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}}}
}

func asking(name string, bytes int64) *csipb.CreateVolumeRequest {
	return &csipb.CreateVolumeRequest{Name: name, CapacityRange: &csipb.CapacityRange{RequiredBytes: bytes},
		VolumeCapabilities: []*csipb.VolumeCapability{plain(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)}}
}

func (d *Driver) mustCreate(t *testing.T, name string) string {
	t.Helper()
	v, err := controller{Driver: d}.CreateVolume(t.Context(), asking(name, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	return v.Volume.VolumeId
}

func publish(t *testing.T, d *Driver, id, target string, options ...string) error {
	t.Helper()
	c := plain(csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)
	c.GetMount().MountFlags = options
	_, err := nodeService{Driver: d}.NodePublishVolume(t.Context(), &csipb.NodePublishVolumeRequest{VolumeId: id, TargetPath: target, VolumeCapability: c})
	return err
}

func unpublish(t *testing.T, d *Driver, id, target string) {
	t.Helper()
	if _, err := (nodeService{Driver: d}).NodeUnpublishVolume(t.Context(), &csipb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}); err != nil {
		t.Fatal(err)
	}
}

func TestAVolumeKeepsItsFilesUntilItIsDeleted(t *testing.T) {
	d := newDriver(t)
	id := d.mustCreate(t, "pvc-1")
	if id != "pvc-1" || d.mustCreate(t, "pvc-1") != id {
		t.Error(id)
	}
	target := filepath.Join(t.TempDir(), "mount")
	for range 2 { // the second time nothing is mounted on top
		if err := publish(t, d, id, target); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(target, "f"), []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (controller{Driver: d}).DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a mounted volume was deleted: %v", err)
	}
	unpublish(t, d, id, target)
	unpublish(t, d, id, target)
	if _, err := os.Lstat(target); !errors.Is(err, os.ErrNotExist) {
		t.Error("the target stayed:", err)
	}
	d = reopen(t, d.cfg.RootDir)
	if err := publish(t, d, id, target, "ro", "noexec"); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(target, "f")); err != nil || string(b) != "kept" {
		t.Error(string(b), err)
	}
	if err := os.WriteFile(filepath.Join(target, "g"), nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("a read-only mount was written: %v", err)
	}
	unpublish(t, d, id, target)
	for range 2 {
		if _, err := (controller{Driver: d}).DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(d.cfg.Dir); err != nil || len(left) != 0 {
		t.Error(left, err)
	}
	if err := publish(t, d, id, target); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestSizesAreCounted(t *testing.T) {
	if got := roomOf(1000, 700, 300); got != 650 {
		t.Errorf("half promised: %d", got)
	}
	if got := roomOf(1000, 100, 300); got != 100 {
		t.Errorf("filled by others: %d", got)
	}
	if got := roomOf(1000, 900, 2000); got != 0 {
		t.Errorf("promised too much: %d", got)
	}
	d := newDriver(t)
	c := controller{Driver: d}
	before, err := d.store.free()
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateVolume(t.Context(), asking("huge", before+1<<30))
	if status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than there is: %v", err)
	}
	id := d.mustCreate(t, "v")
	for want, r := range map[codes.Code]*csipb.CreateVolumeRequest{codes.AlreadyExists: asking("v", 1<<30), codes.OK: asking("v", 1<<10)} {
		if _, err := c.CreateVolume(t.Context(), r); status.Code(err) != want {
			t.Errorf("again with %d bytes: %v", r.CapacityRange.RequiredBytes, err)
		}
	}
	grow := func(size int64) (int64, error) {
		got, err := c.ControllerExpandVolume(t.Context(), &csipb.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: &csipb.CapacityRange{RequiredBytes: size}})
		return got.GetCapacityBytes(), err
	}
	if got, err := grow(2 << 20); err != nil || got != 2<<20 {
		t.Error(got, err)
	}
	if got, err := grow(1 << 20); err != nil || got != 2<<20 {
		t.Errorf("shrunk: %d %v", got, err)
	}
	if _, err := grow(before + 1<<30); status.Code(err) != codes.ResourceExhausted {
		t.Error(err)
	}
	if m, err := reopen(t, d.cfg.RootDir).store.get(id); err != nil || m.Capacity != 2<<20 {
		t.Error(m, err)
	}
}

func TestWhatADirectoryOfOneNodeIsNotIsRefused(t *testing.T) {
	c := controller{Driver: newDriver(t)}
	for name, change := range map[string]func(*csipb.CreateVolumeRequest){
		"many nodes": func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessMode.Mode = csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
		},
		"a device": func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		},
		"file system": func(r *csipb.CreateVolumeRequest) { r.VolumeCapabilities[0].GetMount().FsType = "xfs" },
		"mount option": func(r *csipb.CreateVolumeRequest) {
			r.VolumeCapabilities[0].GetMount().MountFlags = []string{"data=journal"}
		},
		"a parameter": func(r *csipb.CreateVolumeRequest) { r.Parameters = map[string]string{"path": "/etc"} },
		"a snapshot":  func(r *csipb.CreateVolumeRequest) { r.VolumeContentSource = &csipb.VolumeContentSource{} },
		"no name":     func(r *csipb.CreateVolumeRequest) { r.Name = "" },
	} {
		r := asking("v", 1<<20)
		change(r)
		if _, err := c.CreateVolume(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := asking("v", 1<<20)
	r.AccessibilityRequirements = &csipb.TopologyRequirement{Requisite: []*csipb.Topology{{Segments: map[string]string{TopologyKey: "n2"}}}}
	if _, err := c.CreateVolume(t.Context(), r); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("on another node: %v", err)
	}
}

// TestNothingOutsideTheDirectoryIsTouched: names, links and mounts that lead out of a volume.
func TestNothingOutsideTheDirectoryIsTouched(t *testing.T) {
	d := newDriver(t)
	c := controller{Driver: d}
	precious := filepath.Join(t.TempDir(), "precious")
	if err := os.Mkdir(precious, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(precious, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"..", "../" + filepath.Base(d.cfg.RootDir), "a/../../b", ".hidden", "/etc", "a\x00b"} {
		id := d.mustCreate(t, name)
		if !validID.MatchString(id) {
			t.Errorf("%q is called %q", name, id)
		}
	}
	for _, id := range []string{"..", "../../" + precious, precious, ".", "a/b"} {
		if _, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); err != nil {
			t.Errorf("%q: %v", id, err)
		}
		if err := publish(t, d, id, filepath.Join(t.TempDir(), "m")); status.Code(err) != codes.NotFound {
			t.Errorf("%q was mounted: %v", id, err)
		}
	}

	id := d.mustCreate(t, "v")
	target := filepath.Join(t.TempDir(), "mount")
	if err := publish(t, d, id, target); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(target, "mounted")
	if err := os.Symlink(precious, filepath.Join(target, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(inside, 0o700); err != nil {
		t.Fatal(err)
	}
	unpublish(t, d, id, target)
	data := filepath.Join(d.cfg.Dir, id, dataName, "mounted") // as a pod with bidirectional mount propagation leaves it
	if err := unix.Mount(precious, data, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	_, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id})
	if err == nil {
		t.Error("removal went through a mount")
	}
	for _, path := range mountsOf(t, precious) {
		if err := unix.Unmount(path, 0); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(d.cfg.Dir, gonePrefix+"*")); len(left) != 0 {
		t.Error(left)
	}
	if _, err := os.Stat(file); err != nil {
		t.Fatal("a file outside is gone:", err)
	}

	// The place of the data is swapped for a link, by something that may write there.
	swapped := d.mustCreate(t, "swapped")
	place := filepath.Join(d.cfg.Dir, swapped, dataName)
	if err := errors.Join(os.Remove(place), os.Symlink(precious, place)); err != nil {
		t.Fatal(err)
	}
	if err := publish(t, d, swapped, target); err == nil {
		t.Error("a link out of the directory was mounted")
		unpublish(t, d, swapped, target)
	}
}

// mountsOf are the places where dir is mounted.
func mountsOf(t *testing.T, dir string) (out []string) {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) > 4 && string(f[3]) == dir {
			out = append(out, string(f[4]))
		}
	}
	return out
}

// TestTheProvisionerReachesTheDriver over its socket, through the node's API.
func TestTheProvisionerReachesTheDriver(t *testing.T) {
	d := newDriver(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	h, err := Forward(d.cfg.RootDir)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("POST /{call}", h)
	call := func(name string, in, out proto.Message) answer {
		t.Helper()
		body, err := proto.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+name, bytes.NewReader(body)).WithContext(ctx))
		if w.Code != http.StatusOK {
			return answer{Code: uint32(w.Code)}
		}
		var a answer
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(a.Response, out); err != nil {
			t.Fatal(err)
		}
		return a
	}
	var made csipb.CreateVolumeResponse
	deadline := time.Now().Add(20 * time.Second) // the socket may not be there yet
	for a := call("CreateVolume", asking("v", 1<<20), &made); a.Code != 0; a = call("CreateVolume", asking("v", 1<<20), &made) {
		if a.Code != uint32(codes.Unavailable) || time.Now().After(deadline) {
			t.Fatal(a)
		}
	}
	if made.Volume.VolumeId != "v" || made.Volume.AccessibleTopology[0].Segments[TopologyKey] != "n1" {
		t.Errorf("%v", &made)
	}
	bad := asking("v", 1<<20)
	bad.VolumeCapabilities = nil
	if a := call("CreateVolume", bad, &made); codes.Code(a.Code) != codes.InvalidArgument || a.Message == "" {
		t.Error(a)
	}
	if a := call("ControllerPublishVolume", bad, &made); a.Code != http.StatusNotFound {
		t.Error(a)
	}
}
