package rules

import (
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var (
	refusedDisk      = refuse("node(s) had no available disk")
	refusedExclusive = refuse("node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod")
)

// VolumeConflicts refuses nodes where another pod uses a disk of the pod that only one pod may use, and every node while another pod uses a
// ReadWriteOncePod claim of the pod.
var VolumeConflicts = Filter{
	Name: "VolumeRestrictions",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		v := &conflicts{}
		for i := range c.Pod.Object.Spec.Volumes {
			if vol := &c.Pod.Object.Spec.Volumes[i]; exclusiveDisk(vol) {
				v.disks = append(v.disks, vol)
			}
		}
		var err error
		if v.exclusive, err = exclusiveClaims(c); err != nil {
			return nil, forbid(err.Error())
		}
		for _, claim := range v.exclusive {
			if slices.ContainsFunc(c.Snapshot.Nodes, func(n *snapshot.Node) bool { return n.UsesClaim(claim) }) {
				v.inUse++
			}
		}
		if len(v.disks) == 0 && v.inUse == 0 {
			return nil, nil
		}
		return v, nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Delete},
		{Kind: queue.Node, Action: queue.Add},
		{Kind: queue.Claim, Action: queue.Add | queue.Update, Helps: usesClaim},
	},
}

type conflicts struct {
	disks     []*v1.Volume
	exclusive []string
	inUse     int
}

// Admit implements Check.
func (v *conflicts) Admit(n *snapshot.Node) *Refusal {
	for _, disk := range v.disks {
		for _, p := range n.Pods {
			if slices.ContainsFunc(p.Object.Spec.Volumes, func(o v1.Volume) bool { return sameDisk(disk, &o) }) {
				return refusedDisk
			}
		}
	}
	if v.inUse > 0 {
		return refusedExclusive
	}
	return nil
}

// Change implements Tracker.
func (v *conflicts) Change(p *snapshot.Pod, _ *snapshot.Node, by int) {
	for _, claim := range p.Claims {
		if slices.Contains(v.exclusive, claim) {
			v.inUse += by
		}
	}
}

// Clone implements Tracker.
func (v *conflicts) Clone() Tracker {
	c := *v
	return &c
}

func exclusiveClaims(c *Cycle) ([]string, error) {
	var names []string
	for _, key := range c.Pod.Claims {
		namespace, name, _ := strings.Cut(key, "/")
		claim, err := c.Listers.Claims.PersistentVolumeClaims(namespace).Get(name)
		if errors.IsNotFound(err) {
			continue // VolumeBinding refuses the pod with a better text
		}
		if err != nil {
			return nil, err
		}
		if slices.Contains(claim.Spec.AccessModes, v1.ReadWriteOncePod) {
			names = append(names, key)
		}
	}
	return names, nil
}

func exclusiveDisk(v *v1.Volume) bool {
	return v.GCEPersistentDisk != nil || v.AWSElasticBlockStore != nil || v.RBD != nil || v.ISCSI != nil
}

// sameDisk reports whether the volumes of two pods are one disk that only one of them may mount.
func sameDisk(a, b *v1.Volume) bool {
	switch {
	case a.GCEPersistentDisk != nil && b.GCEPersistentDisk != nil:
		x, y := a.GCEPersistentDisk, b.GCEPersistentDisk
		return x.PDName == y.PDName && !(x.ReadOnly && y.ReadOnly)
	case a.AWSElasticBlockStore != nil && b.AWSElasticBlockStore != nil:
		return a.AWSElasticBlockStore.VolumeID == b.AWSElasticBlockStore.VolumeID
	case a.ISCSI != nil && b.ISCSI != nil:
		return a.ISCSI.IQN == b.ISCSI.IQN && !(a.ISCSI.ReadOnly && b.ISCSI.ReadOnly)
	case a.RBD != nil && b.RBD != nil:
		x, y := a.RBD, b.RBD
		shared := slices.ContainsFunc(x.CephMonitors, func(m string) bool { return slices.Contains(y.CephMonitors, m) })
		return shared && x.RBDPool == y.RBDPool && x.RBDImage == y.RBDImage && !(x.ReadOnly && y.ReadOnly)
	}
	return false
}
