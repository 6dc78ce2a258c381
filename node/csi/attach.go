package csi

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// attachWait is how long one attempt waits for a volume to be attached. A pod's set-up is tried again after that.
	attachWait = 10 * time.Second
	attachPoll = 250 * time.Millisecond
)

// attachmentName is the name of the VolumeAttachment that the controllers make for a volume and a node.
func attachmentName(handle, driver, node string) string {
	return fmt.Sprintf("csi-%x", sha256.Sum256([]byte(handle+driver+node)))
}

// attached waits until the volume is attached to this node, and returns what the driver's controller said of it. A
// node may read one VolumeAttachment by name and not watch them, so it asks again and again.
func (n *Node) attached(ctx context.Context, m *mount) (map[string]string, error) {
	name := m.record.Attachment
	if name == "" {
		return nil, nil
	}
	if n.cfg.InUse != nil && !n.cfg.InUse(UniqueName(m.source.Driver, m.source.VolumeHandle)) {
		return nil, fmt.Errorf("volume %s is not yet in the Node's volumesInUse; tries again", m.PV.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	for {
		metadata, done, err := n.attachment(ctx, m.d, name)
		if done || err != nil && ctx.Err() == nil {
			return metadata, err
		}
		if !pause(ctx, attachPoll) {
			return nil, fmt.Errorf("volume attachment is not yet there: VolumeAttachment %s of volume %s, by driver %s", name, m.PV.Name, m.source.Driver)
		}
	}
}

func (n *Node) attachment(ctx context.Context, d *driver, name string) (metadata map[string]string, done bool, err error) {
	va, err := n.cfg.Client.StorageV1().VolumeAttachments().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err): // forbidden: the authorizer tells nodes nothing of what is not there
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("cannot read VolumeAttachment %s: %w", name, err)
	case va.DeletionTimestamp != nil:
		return nil, false, errors.New("volume is being detached")
	case va.Status.Attached:
		return va.Status.AttachmentMetadata, true, nil
	case va.Status.AttachError != nil:
		if code := va.Status.AttachError.ErrorCode; code != nil && codes.Code(*code) == codes.ResourceExhausted {
			n.foundFull(d)
		}
		return nil, false, fmt.Errorf("volume attachment failed: %s", va.Status.AttachError.Message)
	}
	return nil, false, nil
}

// InUse lists the volumes that a controller may not detach from this node: those that a pod uses or that are staged.
func (n *Node) InUse() ([]v1.UniqueVolumeName, error) {
	pods, err := n.allPodRecords()
	if err != nil {
		return nil, err
	}
	staged, err := n.stagedRecords()
	if err != nil {
		return nil, err
	}
	var out []v1.UniqueVolumeName
	for _, all := range []map[string]record{pods, staged} {
		for _, r := range all {
			if r.Attachment != "" {
				out = append(out, UniqueName(r.Driver, r.Handle))
			}
		}
	}
	slices.SortFunc(out, func(a, b v1.UniqueVolumeName) int { return strings.Compare(string(a), string(b)) })
	return slices.Compact(out), nil
}

func formatGroup(group int64) string { return strconv.FormatInt(group, 10) }
