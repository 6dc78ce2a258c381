package csi

import (
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// allowsInline reports whether the driver serves volumes that live and die with a pod.
func (m *mount) allowsInline() bool {
	return m.about != nil && slices.Contains(m.about.Spec.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral)
}

// needsAttachment reports whether a controller attaches the driver's volumes before a node mounts them. As upstream, one
// without a CSIDriver object does.
func (m *mount) needsAttachment() bool {
	if m.inline() {
		return false
	}
	return m.about == nil || m.about.Spec.AttachRequired == nil || *m.about.Spec.AttachRequired
}

func (m *mount) republished() bool { return m.about != nil && isTrue(m.about.Spec.RequiresRepublish) }

// driverOwnsGroup reports whether the driver itself gives volumes to the pod's fsGroup.
func (m *mount) driverOwnsGroup() bool {
	return m.d.can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
}

// ownsGroup reports whether the files are to be given to the pod's fsGroup by the node (fsGroupPolicy).
func (m *mount) ownsGroup() bool {
	if m.Group == nil || m.Own == nil || m.block || m.ReadOnly || m.source.ReadOnly || m.driverOwnsGroup() {
		return false
	}
	policy := storagev1.ReadWriteOnceWithFSTypeFSGroupPolicy
	if m.about != nil && m.about.Spec.FSGroupPolicy != nil && *m.about.Spec.FSGroupPolicy != "" {
		policy = *m.about.Spec.FSGroupPolicy
	}
	switch policy {
	case storagev1.NoneFSGroupPolicy:
		return false
	case storagev1.FileFSGroupPolicy:
		return true
	}
	if m.inline() {
		return m.source.FSType != ""
	}
	modes := m.PV.Spec.AccessModes
	return m.source.FSType != "" && (slices.Contains(modes, v1.ReadWriteOnce) || slices.Contains(modes, v1.ReadWriteOncePod))
}

// volumeCapability is how the pod uses the volume, in CSI's words.
func (m *mount) volumeCapability() *csipb.VolumeCapability {
	c := &csipb.VolumeCapability{AccessMode: &csipb.VolumeCapability_AccessMode{Mode: m.accessMode()}}
	if m.block {
		c.AccessType = &csipb.VolumeCapability_Block{Block: &csipb.VolumeCapability_BlockVolume{}}
		return c
	}
	fs := &csipb.VolumeCapability_MountVolume{FsType: m.source.FSType}
	if !m.inline() {
		fs.MountFlags = m.PV.Spec.MountOptions
	}
	if m.Group != nil && m.driverOwnsGroup() {
		fs.VolumeMountGroup = formatGroup(*m.Group)
	}
	c.AccessType = &csipb.VolumeCapability_Mount{Mount: fs}
	return c
}

func (m *mount) accessMode() csipb.VolumeCapability_AccessMode_Mode {
	mode := v1.ReadWriteOnce
	if !m.inline() && len(m.PV.Spec.AccessModes) > 0 {
		mode = m.PV.Spec.AccessModes[0]
	}
	exact := m.d.can[csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER]
	switch {
	case mode == v1.ReadOnlyMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	case mode == v1.ReadWriteMany:
		return csipb.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	case mode == v1.ReadWriteOncePod && exact:
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	case mode == v1.ReadWriteOnce && exact && !m.inline():
		return csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
	}
	return csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
}
