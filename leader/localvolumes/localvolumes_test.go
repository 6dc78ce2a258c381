package localvolumes

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-helpers/storage/volume"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// disks are nodes with room, as the driver's controller service.
type disks struct {
	mu      sync.Mutex
	room    map[string]int64            // by node, in bytes
	volumes map[string]map[string]int64 // by node and id
	down    map[string]bool
}

func newDisks(room map[string]int64) *disks {
	d := &disks{room: room, volumes: map[string]map[string]int64{}, down: map[string]bool{}}
	for node := range room {
		d.volumes[node] = map[string]int64{}
	}
	return d
}

func (d *disks) post(_ context.Context, node, method string, body []byte) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down[node] || d.volumes[node] == nil {
		return nil, errors.New("no route to host")
	}
	a := answer{}
	reply := func(m proto.Message) { a.Response, _ = proto.Marshal(m) }
	refuse := func(code codes.Code, why string) { a.Code, a.Message = uint32(code), why }
	left := d.room[node]
	for _, size := range d.volumes[node] {
		left -= size
	}
	switch method {
	case "CreateVolume":
		var r csipb.CreateVolumeRequest
		if err := proto.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		size := r.CapacityRange.RequiredBytes
		if _, have := d.volumes[node][r.Name]; !have && size > left {
			refuse(codes.ResourceExhausted, "not enough room")
			break
		}
		d.volumes[node][r.Name] = size
		reply(&csipb.CreateVolumeResponse{Volume: &csipb.Volume{VolumeId: r.Name, CapacityBytes: size}})
	case "DeleteVolume":
		var r csipb.DeleteVolumeRequest
		if err := proto.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		delete(d.volumes[node], r.VolumeId)
	case "ControllerExpandVolume":
		var r csipb.ControllerExpandVolumeRequest
		if err := proto.Unmarshal(body, &r); err != nil {
			return nil, err
		}
		size := r.CapacityRange.RequiredBytes
		if size-d.volumes[node][r.VolumeId] > left {
			refuse(codes.ResourceExhausted, "not enough room")
			break
		}
		d.volumes[node][r.VolumeId] = size
		reply(&csipb.ControllerExpandVolumeResponse{CapacityBytes: size})
	case "GetCapacity":
		reply(&csipb.GetCapacityResponse{AvailableCapacity: left})
	}
	return json.Marshal(a)
}

func (d *disks) has(node, id string) (size int64, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size, ok = d.volumes[node][id]
	return size, ok
}

func (d *disks) setDown(node string, down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down[node] = down
}

func start(t *testing.T, d *disks, objects ...runtime.Object) (*fake.Clientset, <-chan string) {
	t.Helper()
	for node := range d.room {
		objects = append(objects, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
			&storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: Driver, NodeID: node}}}})
	}
	client := fake.NewClientset(objects...)
	return client, workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) { return newController(env, 2, d.post) })
}

// waiting is a claim that the scheduler has chosen a node for.
func waiting(node string) *v1.PersistentVolumeClaim {
	class := className
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", Annotations: map[string]string{annProvisioner: Driver, volume.AnnSelectedNode: node}},
		Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &class, AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce},
			Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}}},
	}
}

func theClass() *storagev1.StorageClass { return classObject(nil) }

// bound is a claim with its volume on node n1.
func bound(t *testing.T) (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	c := waiting("n1")
	c.Spec.VolumeName, c.Status.Phase = "pvc-u", v1.ClaimBound
	c.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
	v := persistentVolume(c, theClass(), &csipb.Volume{VolumeId: "pvc-u", CapacityBytes: 1 << 30}, "n1")
	v.Status.Phase = v1.VolumeBound
	return c, v
}

func says(t *testing.T, events <-chan string, words ...string) {
	t.Helper()
	var seen []string
	workqueuetest.Eventually(t, "an event with "+strings.Join(words, ", "), func(context.Context) (bool, error) {
		select {
		case e := <-events:
			seen = append(seen, e)
		default:
		}
		return slices.ContainsFunc(seen, func(e string) bool {
			return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e, w) })
		}), nil
	})
}

func TestTheClassIsMadeOnceAndIsTheDefaultWhereThereIsNone(t *testing.T) {
	other := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "other", Annotations: map[string]string{annDefaultClass: "true"}}}
	for name, c := range map[string]struct {
		objects   []runtime.Object
		made, dft bool
	}{
		"new cluster":               {nil, true, true},
		"another default":           {[]runtime.Object{other}, true, false},
		"removed by administrators": {[]runtime.Object{driverObject()}, false, false},
	} {
		client, _ := start(t, newDisks(nil), c.objects...)
		workqueuetest.Eventually(t, "the driver is known", func(ctx context.Context) (bool, error) {
			_, err := client.StorageV1().CSIDrivers().Get(ctx, Driver, metav1.GetOptions{})
			return err == nil, nil
		})
		got, err := client.StorageV1().StorageClasses().Get(t.Context(), className, metav1.GetOptions{})
		if (err == nil) != c.made || err == nil && (got.Annotations[annDefaultClass] == "true") != c.dft {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
}

func TestAClaimGetsAVolumeOnItsNode(t *testing.T) {
	d := newDisks(map[string]int64{"n1": 10 << 30, "n2": 10 << 30})
	client, events := start(t, d, theClass(), driverObject(), waiting("n2"))
	says(t, events, "ProvisioningSucceeded", "Successfully provisioned volume pvc-u")
	v, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "pvc-u", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if nodeOf(v) != "n2" || !ours(v) || v.Spec.ClaimRef.UID != "u" || v.Spec.StorageClassName != className || !slices.Contains(v.Finalizers, finalizer) {
		t.Errorf("%+v", v)
	}
	if _, ok := d.has("n2", "pvc-u"); !ok {
		t.Error("no directory")
	}
	workqueuetest.Eventually(t, "the room is published anew", func(ctx context.Context) (bool, error) {
		s, err := client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).Get(ctx, capacityName("n2", className), metav1.GetOptions{})
		return err == nil && s.Capacity.Value() == 9<<30 && s.NodeTopology.MatchLabels[topologyKey] == "n2" && s.OwnerReferences[0].UID == "n2", nil
	})
}

func TestANodeWithoutRoomIsLeftForAnother(t *testing.T) {
	client, events := start(t, newDisks(map[string]int64{"n1": 1 << 20}), theClass(), driverObject(), waiting("n1"))
	says(t, events, "ProvisioningFailed", "not enough room")
	workqueuetest.Eventually(t, "the choice is taken back", func(ctx context.Context) (bool, error) {
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && c.Annotations[volume.AnnSelectedNode] == "", err
	})
}

func TestANodeThatCannotBeAskedKeepsItsClaim(t *testing.T) {
	d := newDisks(map[string]int64{"n1": 10 << 30})
	d.setDown("n1", true)
	client, events := start(t, d, theClass(), driverObject(), waiting("n1"))
	says(t, events, "ProvisioningFailed", "no route to host")
	d.setDown("n1", false)
	says(t, events, "ProvisioningSucceeded")
	if c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{}); err != nil || c.Annotations[volume.AnnSelectedNode] != "n1" {
		t.Errorf("%v %v", c, err)
	}
}

func TestAClaimThatWaitsForNoPodGetsTheNodeWithTheMostRoom(t *testing.T) {
	now := storagev1.VolumeBindingImmediate
	class := theClass()
	class.VolumeBindingMode = &now
	claim := waiting("")
	delete(claim.Annotations, volume.AnnSelectedNode)
	d := newDisks(map[string]int64{"n1": 2 << 30, "n2": 9 << 30, "n3": 1 << 20})
	client, events := start(t, d, class, driverObject())
	workqueuetest.Eventually(t, "all rooms are published", func(ctx context.Context) (bool, error) {
		all, err := client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		return err == nil && len(all.Items) == 3, err
	})
	if _, err := client.CoreV1().PersistentVolumeClaims("ns").Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	says(t, events, "ProvisioningSucceeded")
	if _, ok := d.has("n2", "pvc-u"); !ok {
		t.Error(d.volumes)
	}
}

func TestAReleasedVolumeGoesWithItsDirectory(t *testing.T) {
	d := newDisks(map[string]int64{"n1": 10 << 30})
	d.volumes["n1"]["pvc-u"] = 1 << 30
	d.setDown("n1", true)
	_, v := bound(t)
	v.Status.Phase = v1.VolumeReleased
	client, events := start(t, d, theClass(), driverObject(), v)
	says(t, events, "VolumeFailedDelete")
	if _, err := client.CoreV1().PersistentVolumes().Get(t.Context(), v.Name, metav1.GetOptions{}); err != nil {
		t.Error("the object went before its directory:", err)
	}
	d.setDown("n1", false)
	workqueuetest.Eventually(t, "the volume is gone", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{})
		_, there := d.has("n1", "pvc-u")
		return apierrors.IsNotFound(err) && !there, nil
	})
}

func TestAClaimGrowsAndSaysWhenItCannot(t *testing.T) {
	d := newDisks(map[string]int64{"n1": 4 << 30})
	d.volumes["n1"]["pvc-u"] = 1 << 30
	claim, v := bound(t)
	client, events := start(t, d, theClass(), driverObject(), claim, v)
	ask := func(size string) {
		t.Helper()
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Spec.Resources.Requests[v1.ResourceStorage] = resource.MustParse(size)
		if _, err := client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ask("100Gi")
	says(t, events, "VolumeResizeFailed", "not enough room")
	workqueuetest.Eventually(t, "the claim says that it cannot grow", func(ctx context.Context) (bool, error) {
		c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(ctx, "c", metav1.GetOptions{})
		return err == nil && c.Status.AllocatedResourceStatuses[v1.ResourceStorage] == v1.PersistentVolumeClaimControllerResizeInfeasible, err
	})
	ask("3Gi")
	says(t, events, "VolumeResizeSuccessful")
	c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	size := c.Status.Capacity[v1.ResourceStorage]
	if onDisk, _ := d.has("n1", "pvc-u"); size.Value() != 3<<30 || onDisk != 3<<30 || len(c.Status.AllocatedResourceStatuses) != 0 {
		t.Errorf("%v on disk %d", c.Status, onDisk)
	}
}

func TestStepsForVolumes(t *testing.T) {
	at := metav1.Now()
	for name, c := range map[string]struct {
		change func(*v1.PersistentVolume)
		want   step
	}{
		"bound":                   {func(*v1.PersistentVolume) {}, nothing},
		"released":                {func(v *v1.PersistentVolume) { v.Status.Phase = v1.VolumeReleased }, reclaim},
		"deleted while bound":     {func(v *v1.PersistentVolume) { v.DeletionTimestamp = &at }, nothing},
		"deleted after its claim": {func(v *v1.PersistentVolume) { v.DeletionTimestamp, v.Status.Phase = &at, v1.VolumeReleased }, reclaim},
		"deleted, never bound":    {func(v *v1.PersistentVolume) { v.DeletionTimestamp, v.Status.Phase = &at, v1.VolumeAvailable }, reclaim},
		"kept":                    {func(v *v1.PersistentVolume) { v.Spec.PersistentVolumeReclaimPolicy = v1.PersistentVolumeReclaimRetain }, release},
		"kept and released": {func(v *v1.PersistentVolume) {
			v.Spec.PersistentVolumeReclaimPolicy, v.Status.Phase, v.Finalizers = v1.PersistentVolumeReclaimRetain, v1.VolumeReleased, nil
		}, nothing},
		"to be deleted from now on": {func(v *v1.PersistentVolume) { v.Finalizers = nil }, guard},
		"already let go": {func(v *v1.PersistentVolume) {
			v.Finalizers, v.DeletionTimestamp, v.Status.Phase = nil, &at, v1.VolumeReleased
		}, nothing},
	} {
		_, v := bound(t)
		c.change(v)
		if got := stepFor(v); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

func TestRoomForAClassThatIsGoneIsOutdated(t *testing.T) {
	mine, other := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
	foreign := storageCapacity(mine, "gone", 1)
	foreign.Name = "csisc-of-a-provisioner"
	taken := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "taken"}, Provisioner: "another.example"}
	known := []*storagev1.CSIStorageCapacity{
		storageCapacity(mine, className, 1), storageCapacity(mine, "gone", 1), storageCapacity(mine, "taken", 1), storageCapacity(other, "gone", 1), foreign,
	}
	got := outdated(mine, known, []*storagev1.StorageClass{theClass(), taken})
	if len(got) != 2 || got[0].StorageClassName != "gone" || got[1].StorageClassName != "taken" {
		t.Errorf("%v", got)
	}
}

func TestRoomGoesWithItsClass(t *testing.T) {
	client, _ := start(t, newDisks(map[string]int64{"n1": 10 << 30}), theClass(), driverObject())
	capacities := client.StorageV1().CSIStorageCapacities(metav1.NamespaceSystem)
	workqueuetest.Eventually(t, "the room is published, and goes", func(ctx context.Context) (bool, error) {
		_, err := capacities.Get(ctx, capacityName("n1", className), metav1.GetOptions{})
		return err == nil, nil
	})
	if err := client.StorageV1().StorageClasses().Delete(t.Context(), className, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "the room is published, and goes", func(ctx context.Context) (bool, error) {
		_, err := capacities.Get(ctx, capacityName("n1", className), metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
}

func TestRoomIsWrittenWhenItChangedByAHundredth(t *testing.T) {
	was := resource.NewQuantity(10000, resource.BinarySI)
	for now, want := range map[int64]bool{10000: false, 9901: false, 9800: true, 10200: true, 0: true} {
		if worthWriting(was, now) != want {
			t.Errorf("%d: %v", now, !want)
		}
	}
}
