package volume

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/node/csi"
)

// fakeCSI publishes directories, and notes what it is asked.
type fakeCSI struct {
	dir       string
	published []csi.Request
	answer    csi.Published
	grown     resource.Quantity
	taken     []types.UID
	busy      error
}

func (f *fakeCSI) Publish(_ context.Context, r csi.Request) (csi.Published, error) {
	f.published = append(f.published, r)
	f.answer.Path = f.dir
	return f.answer, f.busy
}

func (f *fakeCSI) Expand(_ context.Context, _ csi.Request, size resource.Quantity) error {
	f.grown = size
	return nil
}

func (f *fakeCSI) UnpublishPod(_ context.Context, uid types.UID) error {
	f.taken = append(f.taken, uid)
	return f.busy
}

func (f *fakeCSI) Usage(_ context.Context, _ *v1.Pod, volume string) (csi.Usage, bool, error) {
	if volume != "pv" {
		return csi.Usage{}, false, errors.New("no such volume")
	}
	return csi.Usage{Capacity: 100, Used: 40, Available: 60, Inodes: -1, InodesUsed: -1, InodesAvail: -1}, true, nil
}

func csiClaim() (*v1.PersistentVolumeClaim, *v1.PersistentVolume) {
	size := func(q string) v1.ResourceList { return v1.ResourceList{v1.ResourceStorage: resource.MustParse(q)} }
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u"}, Spec: v1.PersistentVolumeClaimSpec{VolumeName: "pv"},
		Status: v1.PersistentVolumeClaimStatus{Phase: v1.ClaimBound, Capacity: size("1Gi"),
			AllocatedResourceStatuses: map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending},
			Conditions:                []v1.PersistentVolumeClaimCondition{{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}}}
	pv := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}, Spec: v1.PersistentVolumeSpec{Capacity: size("2Gi"), ClaimRef: &v1.ObjectReference{UID: "u"},
		PersistentVolumeSource: v1.PersistentVolumeSource{CSI: &v1.CSIPersistentVolumeSource{Driver: "d", VolumeHandle: "h"}}}}
	return claim, pv
}

func claimPod() *v1.Pod {
	return podWith("p", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}})
}

func TestAVolumeOfADriverIsPublishedAndGrowsWithItsClaim(t *testing.T) {
	claim, pv := csiClaim()
	m, client := newManager(t, claim, pv)
	f := &fakeCSI{dir: t.TempDir(), answer: csi.Published{Expands: true}}
	m.cfg.CSI = f
	pod := claimPod()
	if got := setUp(t, m, pod)["v"]; got.HostPath != f.dir || got.Block || got.ReadOnly {
		t.Errorf("%+v", got)
	}
	if f.grown.String() != "2Gi" {
		t.Errorf("the driver is told of %s", f.grown.String())
	}
	c, err := client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "c", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if q := c.Status.Capacity[v1.ResourceStorage]; q.String() != "2Gi" || len(c.Status.Conditions) != 0 || len(c.Status.AllocatedResourceStatuses) != 0 {
		t.Errorf("%+v", c.Status)
	}
	f.busy = errors.New("the driver is away")
	if err := m.TearDown(t.Context(), pod.UID); err == nil || !strings.Contains(err.Error(), "away") {
		t.Errorf("a pod whose volume stayed mounted is done: %v", err)
	}
	f.busy = nil
	tearDown(t, m, pod)
	if len(f.taken) != 2 || f.taken[1] != pod.UID {
		t.Error(f.taken)
	}
}

func TestADriverThatWantsToHearAgainDoes(t *testing.T) {
	claim, pv := csiClaim()
	m, _ := newManager(t, claim, pv)
	f := &fakeCSI{dir: t.TempDir(), answer: csi.Published{Republish: true}}
	m.cfg.CSI = f
	pod := claimPod()
	setUp(t, m, pod)
	setUp(t, m, pod)
	if err := m.refresh(t.Context(), pod.UID); err != nil || len(f.published) != 2 {
		t.Errorf("published %d times: %v", len(f.published), err)
	}
	f.answer.Republish = false
	for range 2 {
		if err := m.refresh(t.Context(), pod.UID); err != nil {
			t.Fatal(err)
		}
	}
	if len(f.published) != 3 {
		t.Errorf("published %d times", len(f.published))
	}
	tearDown(t, m, pod)
}

func TestTokensForADriverHaveItsAudienceAndLife(t *testing.T) {
	m, client := newManager(t)
	client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r, ok := a.(clienttesting.CreateAction).GetObject().(*authv1.TokenRequest)
		if !ok || r.Spec.BoundObjectRef.UID != "uid-p" {
			return true, nil, errors.New("not a token of the pod's")
		}
		r = r.DeepCopy()
		life := time.Duration(*r.Spec.ExpirationSeconds) * time.Second
		r.Status = authv1.TokenRequestStatus{Token: "for " + strings.Join(r.Spec.Audiences, ","), ExpirationTimestamp: metav1.NewTime(time.Now().Add(life))}
		return true, r, nil
	})
	f := &fakeCSI{dir: t.TempDir()}
	m.cfg.CSI = f
	pod := podWith("p", v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{Driver: "d"}}})
	setUp(t, m, pod)
	seconds := int64(7200)
	text, err := f.published[0].Tokens(t.Context(), []storagev1.TokenRequest{{Audience: "vault", ExpirationSeconds: &seconds}, {}})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]struct {
		Token   string      `json:"token"`
		Expires metav1.Time `json:"expirationTimestamp"`
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got["vault"].Token != "for vault" || got[""].Token != "for " || got["vault"].Expires.Sub(got[""].Expires.Time) < 50*time.Minute {
		t.Errorf("%+v", got)
	}
	tearDown(t, m, pod)
}
