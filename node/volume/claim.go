package volume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	storagehelper "k8s.io/component-helpers/storage/volume"
)

// claimProtection is the finalizer that lets a claim live on while pods use it.
const claimProtection = "kubernetes.io/pvc-protection"

// setUpClaim resolves a claim to its PersistentVolume and checks that this node can use it.
func (m *Manager) setUpClaim(ctx context.Context, st *podState, v *v1.Volume) (Volume, error) {
	pod := st.pod
	b, err := m.resolveClaim(ctx, pod, v)
	if err != nil {
		return Volume{}, err
	}
	pv, readOnly := b.pv, b.readOnly
	if m.cfg.NodeLabels != nil {
		if err := storagehelper.CheckNodeAffinity(pv, m.cfg.NodeLabels()); err != nil {
			return Volume{}, fmt.Errorf("MountVolume.NodeAffinity check failed for volume %q : %w", pv.Name, err)
		}
	}
	if err := m.notePersistent(pod.UID, v.Name, b); err != nil {
		return Volume{}, err
	}
	block := isBlock(pv)
	if err := checkMode(pod, v.Name, block); err != nil {
		return Volume{}, err
	}
	switch {
	case pv.Spec.CSI != nil:
		return m.setUpCSI(ctx, st, v, b)
	case pv.Spec.HostPath != nil:
		if err := checkHostPath(pv.Spec.HostPath.Path, pv.Spec.HostPath.Type); err != nil {
			return Volume{}, err
		}
		return Volume{HostPath: pv.Spec.HostPath.Path, ReadOnly: readOnly, Block: block}, nil
	case pv.Spec.Local != nil:
		return m.setUpLocal(ctx, st, v, b)
	}
	return Volume{}, fmt.Errorf("persistent volume %q: no volume plugin on this node can mount its source", pv.Name)
}

func isBlock(pv *v1.PersistentVolume) bool {
	return pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == v1.PersistentVolumeBlock
}

// boundClaim is a claim of a pod with its volume.
type boundClaim struct {
	claim    *v1.PersistentVolumeClaim
	pv       *v1.PersistentVolume
	readOnly bool
}

// resolveClaim returns the claim that v names, or that was made for this pod, with its PersistentVolume.
func (m *Manager) resolveClaim(ctx context.Context, pod *v1.Pod, v *v1.Volume) (boundClaim, error) {
	source := v.PersistentVolumeClaim
	if source == nil {
		source = &v1.PersistentVolumeClaimVolumeSource{ClaimName: ephemeral.VolumeClaimName(pod, v)}
	}
	fail := func(err error) (boundClaim, error) {
		return boundClaim{}, fmt.Errorf("error processing PVC %s/%s: %w", pod.Namespace, source.ClaimName, err)
	}
	claim, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, source.ClaimName, metav1.GetOptions{})
	if err != nil {
		return fail(fmt.Errorf("failed to fetch PVC from API server: %w", err))
	}
	switch {
	case claim.DeletionTimestamp != nil && !slices.Contains(claim.Finalizers, claimProtection):
		return fail(errors.New("PVC is being deleted"))
	case claim.Status.Phase != v1.ClaimBound:
		return fail(errors.New("PVC is not bound"))
	case claim.Spec.VolumeName == "":
		return fail(errors.New("PVC has empty pvc.Spec.VolumeName"))
	}
	if v.PersistentVolumeClaim == nil {
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			return boundClaim{}, err
		}
	}
	name := claim.Spec.VolumeName
	pv, err := m.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fail(fmt.Errorf("failed to fetch PV %s from API server: %w", name, err))
	case pv.Spec.ClaimRef == nil:
		return fail(fmt.Errorf("found PV object %s but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim", name))
	case pv.Spec.ClaimRef.UID != claim.UID:
		return fail(fmt.Errorf("found PV object %s but its pv.Spec.ClaimRef.UID %s does not point to claim.UID %s",
			name, pv.Spec.ClaimRef.UID, claim.UID))
	}
	return boundClaim{claim: claim, pv: pv, readOnly: source.ReadOnly}, nil
}

// checkMode refuses a block volume in volumeMounts and a file system in volumeDevices.
func checkMode(pod *v1.Pod, name string, block bool) error {
	for _, c := range allContainers(pod) {
		for _, mount := range c.mounts {
			if mount.Name == name && block {
				return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeMounts", name, v1.PersistentVolumeBlock)
			}
		}
		for _, d := range c.devices {
			if d.Name == name && !block {
				return fmt.Errorf("volume %s has volumeMode %s, but is specified in volumeDevices", name, v1.PersistentVolumeFilesystem)
			}
		}
	}
	return nil
}

// applyFSGroup gives a persistent file system to the pod's fsGroup, as fsGroupChangePolicy says.
func applyFSGroup(pod *v1.Pod, path string) error {
	sc := pod.Spec.SecurityContext
	if sc == nil || sc.FSGroup == nil {
		return nil
	}
	onMismatch := sc.FSGroupChangePolicy != nil && *sc.FSGroupChangePolicy == v1.FSGroupChangeOnRootMismatch
	if onMismatch && rootMatches(path, *sc.FSGroup, false) {
		return nil
	}
	return ownTree(path, *sc.FSGroup, false)
}
