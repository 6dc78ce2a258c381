package attachdetach

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unmountWait is how long a node that is not ready may keep a volume that no pod uses; upstream has the same value. Its data may be
// damaged after that, if the node lives and still writes.
const unmountWait = 6 * time.Minute

// attachment is the object that has a volume attached to a node.
func attachment(pv *v1.PersistentVolume, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: attachmentName(pv.Spec.CSI, node)}, Spec: storagev1.VolumeAttachmentSpec{
		Attacher: pv.Spec.CSI.Driver, NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pv.Name}}}
}

// shared reports whether several nodes may have the volume at once.
func shared(pv *v1.PersistentVolume) bool {
	return slices.Contains(pv.Spec.AccessModes, v1.ReadWriteMany) || slices.Contains(pv.Spec.AccessModes, v1.ReadOnlyMany)
}

// have is a VolumeAttachment of the node that is ours to delete.
type have struct {
	*storagev1.VolumeAttachment
	inUse v1.UniqueVolumeName
	since time.Time // since when no pod needs it; zero while one does
}

// situation is what is known of one node.
type situation struct {
	node    *v1.Node // nil when it is gone
	wanted  map[string]*v1.PersistentVolume
	have    map[string]have // both by the name of the attachment
	holders map[string]string
	now     time.Time
}

// plan is what is to be done for one node.
type plan struct {
	attach  []*v1.PersistentVolume
	blocked []*v1.PersistentVolume // another node still has it
	detach  []*storagev1.VolumeAttachment
	again   time.Duration // when to look again; 0 for at the next change
}

// decide is the decision; holders are the other nodes that have a wanted volume, by its name.
func decide(s situation) (p plan) {
	soon := func(d time.Duration) {
		if p.again == 0 || d < p.again {
			p.again = d
		}
	}
	for name, pv := range s.wanted {
		if _, ok := s.have[name]; ok || s.node == nil {
			continue
		}
		if s.holders[pv.Name] != "" && !shared(pv) {
			p.blocked = append(p.blocked, pv)
			soon(blockedInterval)
			continue
		}
		p.attach = append(p.attach, pv)
	}
	for name, va := range s.have {
		if s.wanted[name] != nil || va.DeletionTimestamp != nil {
			continue
		}
		if wait := keeps(s.node, va, s.now); wait > 0 {
			soon(wait)
			continue
		} else if wait == 0 {
			p.detach = append(p.detach, va.VolumeAttachment)
		}
	}
	slices.SortFunc(p.attach, byName)
	slices.SortFunc(p.blocked, byName)
	slices.SortFunc(p.detach, func(a, b *storagev1.VolumeAttachment) int { return strings.Compare(a.Name, b.Name) })
	return p
}

func byName(a, b *v1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) }

// blockedInterval is how soon it is looked again whether another node has let a volume go.
const blockedInterval = time.Second

// keeps says how long a volume that no pod needs stays attached: 0 is no longer, negative is until the node says
// otherwise.
func keeps(node *v1.Node, va have, now time.Time) time.Duration {
	switch {
	case node == nil, outOfService(node), !slices.Contains(node.Status.VolumesInUse, va.inUse):
		return 0
	case ready(node):
		return -1
	}
	return max(0, va.since.Add(unmountWait).Sub(now))
}

func outOfService(n *v1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService })
}

func ready(n *v1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue })
}

// attachedTo lists, for the node's status, what is attached to it.
func attachedTo(all []*storagev1.VolumeAttachment, inUse func(*storagev1.VolumeAttachment) (v1.UniqueVolumeName, bool)) []v1.AttachedVolume {
	out := []v1.AttachedVolume{}
	for _, va := range all {
		if name, ok := inUse(va); ok && va.Status.Attached && va.DeletionTimestamp == nil {
			out = append(out, v1.AttachedVolume{Name: name})
		}
	}
	slices.SortFunc(out, func(a, b v1.AttachedVolume) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return out
}
