package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/csi"
)

// CSI mounts volumes of CSI drivers.
type CSI interface {
	Publish(context.Context, csi.Request) (csi.Published, error)
	Expand(context.Context, csi.Request, resource.Quantity) error
	UnpublishPod(context.Context, types.UID) error
	Usage(ctx context.Context, pod *v1.Pod, volume string) (u csi.Usage, ok bool, err error)
}

// claimInterval is how often drivers that want that are told of a pod anew, and how often claims are looked at whose
// volumes may have grown: a node may read its pods' claims one by one and not watch them.
const claimInterval = 30 * time.Second

var errNoCSI = errors.New("no volume plugin matched: CSI drivers are not served here")

// setUpInline mounts a volume that a CSI driver makes for this pod alone.
func (m *Manager) setUpInline(ctx context.Context, st *podState, v *v1.Volume) (Volume, error) {
	m.note(st.pod.UID, v.Name, persistent{spec: v.Name, csi: true})
	return m.publishCSI(ctx, st, csi.Request{Pod: st.pod, Volume: v}, nil)
}

// setUpCSI mounts a PersistentVolume of a CSI driver, and has it grow when its claim's turn has come.
func (m *Manager) setUpCSI(ctx context.Context, st *podState, v *v1.Volume, b boundClaim) (Volume, error) {
	return m.publishCSI(ctx, st, csi.Request{Pod: st.pod, Volume: v, PV: b.pv, ReadOnly: b.readOnly}, b.claim)
}

func (m *Manager) publishCSI(ctx context.Context, st *podState, r csi.Request, claim *v1.PersistentVolumeClaim) (Volume, error) {
	if m.cfg.CSI == nil {
		return Volume{}, errNoCSI
	}
	r.Group = fsGroup(r.Pod)
	r.Own = func(path string) error { return applyFSGroup(r.Pod, path) }
	r.Tokens = func(ctx context.Context, wanted []storagev1.TokenRequest) (string, error) {
		return m.csiTokens(ctx, st, r.Volume.Name, wanted)
	}
	got, err := m.cfg.CSI.Publish(ctx, r)
	if err != nil {
		return Volume{}, err
	}
	again := got.Republish || got.Expands
	st.again[r.Volume.Name] = again
	if got.Expands && !r.ReadOnly {
		grow := func(size resource.Quantity) error { return m.cfg.CSI.Expand(ctx, r, size) }
		if err := m.expand(ctx, r.PV, claim, grow); err != nil {
			return Volume{}, err
		}
	}
	if again {
		m.refreshAt(r.Pod.UID, time.Now().Add(claimInterval))
	}
	return Volume{HostPath: got.Path, ReadOnly: r.ReadOnly, Block: r.PV != nil && isBlock(r.PV)}, nil
}

// csiTokens returns the tokens that a driver asks for, as the JSON text that drivers read.
func (m *Manager) csiTokens(ctx context.Context, st *podState, volume string, wanted []storagev1.TokenRequest) (string, error) {
	type shown struct {
		Token   string      `json:"token"`
		Expires metav1.Time `json:"expirationTimestamp"`
	}
	out := map[string]shown{}
	for i, w := range wanted {
		key := fmt.Sprintf("%s/csi/%d", volume, i)
		t, err := m.tokenFor(ctx, st.pod, &v1.ServiceAccountTokenProjection{Audience: w.Audience, ExpirationSeconds: w.ExpirationSeconds}, st.tokens[key])
		if err != nil {
			return "", err
		}
		st.tokens[key] = t
		out[w.Audience] = shown{Token: t.value, Expires: metav1.NewTime(t.expires)}
	}
	text, err := json.Marshal(out)
	return string(text), err
}

// expand calls grow for a volume that is larger than its claim says, and then says so in the claim.
func (m *Manager) expand(ctx context.Context, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim, grow func(resource.Quantity) error) error {
	size, has := pv.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if size.Cmp(has) <= 0 {
		return nil
	}
	if err := grow(size); err != nil {
		return fmt.Errorf("MountVolume.NodeExpandVolume failed: %w", err)
	}
	grown := claim.DeepCopy()
	grown.Status = expanded(claim.Status, size)
	if apiequality.Semantic.DeepEqual(grown.Status, claim.Status) {
		return nil
	}
	_, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx, grown, metav1.UpdateOptions{})
	return err
}

// expanded is the status of a claim whose volume has grown to size.
func expanded(s v1.PersistentVolumeClaimStatus, size resource.Quantity) v1.PersistentVolumeClaimStatus {
	s = *s.DeepCopy()
	if s.Capacity == nil {
		s.Capacity = v1.ResourceList{}
	}
	s.Capacity[v1.ResourceStorage] = size
	delete(s.AllocatedResourceStatuses, v1.ResourceStorage)
	var kept []v1.PersistentVolumeClaimCondition
	for _, c := range s.Conditions {
		switch c.Type {
		case v1.PersistentVolumeClaimResizing, v1.PersistentVolumeClaimFileSystemResizePending, v1.PersistentVolumeClaimNodeResizeError:
		default:
			kept = append(kept, c)
		}
	}
	s.Conditions = kept
	return s
}
