package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"syscall"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var errNotDir = syscall.ENOTDIR

// Request is one volume of one pod.
type Request struct {
	Pod *v1.Pod
	// Volume is the pod's volume. Its source is csi for an inline volume, and a claim otherwise.
	Volume *v1.Volume
	// PV is the PersistentVolume behind the claim; nil for an inline volume.
	PV *v1.PersistentVolume
	// ReadOnly: the claim is used read-only.
	ReadOnly bool
	// Group is the pod's fsGroup; nil for none.
	Group *int64
	// Own gives the files below a path to the group, for drivers that leave this to the node.
	Own func(path string) error
	// Tokens asks for the service-account tokens of the pod that the driver wants, by audience.
	Tokens func(ctx context.Context, wanted []storagev1.TokenRequest) (string, error)
}

// Published is a volume that is mounted for a pod.
type Published struct {
	// Path is the directory, or for a block volume the device.
	Path string
	// Republish: the driver wants to be asked again from time to time.
	Republish bool
	// Expands: the driver wants to be told on the node when the volume has grown.
	Expands bool
}

// mount is a request with what follows from it.
type mount struct {
	Request
	d          *driver
	about      *storagev1.CSIDriver // nil when there is no such object
	source     *v1.CSIPersistentVolumeSource
	record     record
	dir        string // of the record
	block      bool
	capability *csipb.VolumeCapability
}

// Publish mounts a volume for a pod, once. It is idempotent, and called again for a driver that wants that, the pod's
// information and tokens are handed over anew. The error's text is what users read in an event.
func (n *Node) Publish(ctx context.Context, r Request) (Published, error) {
	m, err := n.resolve(ctx, r)
	if err != nil {
		return Published{}, err
	}
	unlock, err := n.locks.lock(ctx, m.record.key())
	if err != nil {
		return Published{}, err
	}
	defer unlock()
	out := Published{Path: m.record.Target, Republish: m.republished(), Expands: !m.inline() && m.d.can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME]}
	there, err := mounted(m.record.Target)
	if err != nil {
		return out, err
	}
	old, err := readRecord(m.dir)
	m.record.Ready = err == nil && there && old.Ready
	if m.record.Ready && !out.Republish {
		return out, nil
	}
	if err := m.record.write(m.dir); err != nil {
		return out, err
	}
	if !there || out.Republish {
		if err := n.mount(ctx, m); err != nil {
			return out, err
		}
	}
	if m.record.Ready {
		return out, nil
	}
	if m.ownsGroup() {
		if err := m.Own(m.record.Target); err != nil {
			return out, err
		}
	}
	m.record.Ready = true
	return out, m.record.write(m.dir)
}

// mount has the driver mount the volume. Called with the volume's lock.
func (n *Node) mount(ctx context.Context, m *mount) error {
	publishContext, err := n.attached(ctx, m)
	if err != nil {
		return err
	}
	staging := ""
	if m.d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] && !m.inline() {
		if staging, err = n.stage(ctx, m, publishContext); err != nil {
			return err
		}
	}
	return n.publish(ctx, m, staging, publishContext)
}

func (m *mount) inline() bool { return m.PV == nil }

// resolve finds out all about a request that does not need the volume's lock.
func (n *Node) resolve(ctx context.Context, r Request) (*mount, error) {
	m := &mount{Request: r}
	uid := r.Pod.UID
	if m.inline() {
		src := r.Volume.CSI
		m.source = &v1.CSIPersistentVolumeSource{Driver: src.Driver, VolumeHandle: inlineHandle(r), VolumeAttributes: src.VolumeAttributes}
		if src.FSType != nil {
			m.source.FSType = *src.FSType
		}
		m.source.ReadOnly = src.ReadOnly != nil && *src.ReadOnly
		if src.NodePublishSecretRef != nil {
			m.source.NodePublishSecretRef = &v1.SecretReference{Namespace: r.Pod.Namespace, Name: src.NodePublishSecretRef.Name}
		}
		m.record = record{Volume: r.Volume.Name, Lifecycle: string(storagev1.VolumeLifecycleEphemeral)}
	} else {
		m.source = r.PV.Spec.CSI
		m.block = r.PV.Spec.VolumeMode != nil && *r.PV.Spec.VolumeMode == v1.PersistentVolumeBlock
		m.record = record{Volume: r.PV.Name, Lifecycle: string(storagev1.VolumeLifecyclePersistent)}
	}
	var err error
	if m.d, err = n.driver(m.source.Driver); err != nil {
		return nil, err
	}
	m.about, err = n.cfg.Client.StorageV1().CSIDrivers().Get(ctx, m.source.Driver, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		m.about, err = nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read CSIDriver %s: %w", m.source.Driver, err)
	}
	if m.inline() && !m.allowsInline() {
		return nil, fmt.Errorf("volume mode %q not supported by driver %s (no CSIDriver object, or it does not list the mode)", storagev1.VolumeLifecycleEphemeral, m.source.Driver)
	}
	m.record.Driver, m.record.Handle, m.record.Pod = m.source.Driver, m.source.VolumeHandle, uid
	m.record.Target = n.target(uid, m.record.Volume, m.block)
	m.dir = filepath.Join(n.podVolumesDir(uid), m.record.Volume)
	if m.needsAttachment() {
		m.record.Attachment = attachmentName(m.source.VolumeHandle, m.source.Driver, n.cfg.NodeName)
	}
	m.capability = m.volumeCapability()
	return m, nil
}

// inlineHandle names an inline volume as upstream does: csi- and a hash of the pod and the volume.
func inlineHandle(r Request) string {
	sum := sha256.Sum256([]byte(r.Pod.Namespace + string(r.Pod.UID) + r.Volume.Name))
	return "csi-" + hex.EncodeToString(sum[:])
}

func (n *Node) stage(ctx context.Context, m *mount, publishContext map[string]string) (string, error) {
	dir := n.stagingDir(m.source.Driver, m.source.VolumeHandle)
	target := filepath.Join(dir, "globalmount")
	if n.isStaged(dir) {
		return target, nil
	}
	r := m.record
	r.Pod, r.Target, r.Ready = "", target, false
	if err := r.write(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(target, 0o750); err != nil {
		return "", err
	}
	secrets, err := n.secrets(ctx, m.source.NodeStageSecretRef)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = m.d.node.NodeStageVolume(ctx, &csipb.NodeStageVolumeRequest{
		VolumeId: m.source.VolumeHandle, PublishContext: publishContext, StagingTargetPath: target,
		VolumeCapability: m.capability, Secrets: secrets, VolumeContext: m.source.VolumeAttributes,
	})
	if err != nil {
		return "", fmt.Errorf("MountVolume.MountDevice failed: %w", err)
	}
	n.setStaged(dir, true)
	return target, nil
}

func (n *Node) publish(ctx context.Context, m *mount, staging string, publishContext map[string]string) error {
	if err := os.MkdirAll(filepath.Dir(m.record.Target), 0o750); err != nil {
		return err
	}
	secrets, err := n.secrets(ctx, m.source.NodePublishSecretRef)
	if err != nil {
		return err
	}
	attributes, secrets, err := m.handOver(ctx, secrets)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err = m.d.node.NodePublishVolume(ctx, &csipb.NodePublishVolumeRequest{
		VolumeId: m.source.VolumeHandle, PublishContext: publishContext, StagingTargetPath: staging, TargetPath: m.record.Target,
		VolumeCapability: m.capability, Readonly: m.ReadOnly || m.source.ReadOnly, Secrets: secrets, VolumeContext: attributes,
	})
	if err != nil {
		return err
	}
	return nil
}

// handOver adds to the volume's attributes and secrets what the driver wants to know of the pod.
func (m *mount) handOver(ctx context.Context, secrets map[string]string) (attributes, withTokens map[string]string, err error) {
	attributes = maps.Clone(m.source.VolumeAttributes)
	if attributes == nil {
		attributes = map[string]string{}
	}
	if m.about == nil {
		return attributes, secrets, nil
	}
	if isTrue(m.about.Spec.PodInfoOnMount) {
		maps.Copy(attributes, map[string]string{
			"csi.storage.k8s.io/pod.name":            m.Pod.Name,
			"csi.storage.k8s.io/pod.namespace":       m.Pod.Namespace,
			"csi.storage.k8s.io/pod.uid":             string(m.Pod.UID),
			"csi.storage.k8s.io/serviceAccount.name": m.Pod.Spec.ServiceAccountName,
			"csi.storage.k8s.io/ephemeral":           fmt.Sprint(m.inline()),
		})
	}
	wanted := m.about.Spec.TokenRequests
	if len(wanted) == 0 || m.Tokens == nil {
		return attributes, secrets, nil
	}
	tokens, err := m.Tokens(ctx, wanted)
	if err != nil {
		return nil, nil, err
	}
	into := &attributes
	if isTrue(m.about.Spec.ServiceAccountTokenInSecrets) {
		secrets = maps.Clone(secrets)
		into = &secrets
	}
	if *into == nil {
		*into = map[string]string{}
	}
	(*into)["csi.storage.k8s.io/serviceAccount.tokens"] = tokens
	return attributes, secrets, nil
}

// secrets reads the values that a driver is to be given.
func (n *Node) secrets(ctx context.Context, ref *v1.SecretReference) (map[string]string, error) {
	if ref == nil {
		return nil, nil
	}
	s, err := n.cfg.Client.CoreV1().Secrets(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("fetching NodePublishSecretRef %s/%s failed: %w", ref.Namespace, ref.Name, err)
	}
	out := make(map[string]string, len(s.Data))
	for k, v := range s.Data {
		out[k] = string(v)
	}
	return out, nil
}

func isTrue(b *bool) bool { return b != nil && *b }
