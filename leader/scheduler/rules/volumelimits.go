package rules

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedLimit = refuse("node(s) exceed max volume count")

// VolumeLimits refuses nodes to which a CSI driver cannot attach all of the pod's volumes (CSINode allocatable count).
var VolumeLimits = Filter{
	Name: "NodeVolumeLimits",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		wanted := volumeSet{}
		for _, claim := range c.Pod.Claims {
			wanted.add(c.Listers, claim)
		}
		if len(wanted) == 0 {
			return nil, nil
		}
		return CheckFunc(func(n *snapshot.Node) *Refusal {
			if withinLimits(c.Listers, n, wanted) {
				return nil
			}
			return refusedLimit
		}), nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Pod, Action: queue.Delete, Helps: func(_ *v1.Pod, e queue.Event) bool {
			return podOf(e.Old) == nil || len(podOf(e.Old).Spec.Volumes) > 0
		}},
		{Kind: queue.CSINode, Action: queue.Add | queue.Update},
		{Kind: queue.Claim, Action: queue.Add | queue.Update, Helps: usesClaim},
		{Kind: queue.Node, Action: queue.Add},
	},
}

// volumeSet holds volume handles by CSI driver.
type volumeSet map[string]map[string]struct{}

// add adds the volume of the claim "namespace/name". A volume that is not provisioned yet counts under the claim's name.
func (s volumeSet) add(l *Listers, key string) {
	namespace, name, _ := strings.Cut(key, "/")
	claim, err := l.Claims.PersistentVolumeClaims(namespace).Get(name)
	if err != nil {
		return
	}
	var driver, handle string
	if claim.Spec.VolumeName != "" {
		pv, err := l.Volumes.Get(claim.Spec.VolumeName)
		if err != nil || pv.Spec.CSI == nil {
			return
		}
		driver, handle = pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle
	} else if claim.Spec.StorageClassName != nil {
		class, err := l.StorageClasses.Get(*claim.Spec.StorageClassName)
		if err != nil {
			return
		}
		driver, handle = class.Provisioner, "claim "+key
	}
	if driver == "" {
		return
	}
	if s[driver] == nil {
		s[driver] = make(map[string]struct{})
	}
	s[driver][handle] = struct{}{}
}

func withinLimits(l *Listers, n *snapshot.Node, wanted volumeSet) bool {
	csi, err := l.CSINodes.Get(n.Name())
	if err != nil {
		return true
	}
	var used volumeSet
	for i := range csi.Spec.Drivers {
		d := &csi.Spec.Drivers[i]
		if d.Allocatable == nil || d.Allocatable.Count == nil || len(wanted[d.Name]) == 0 {
			continue
		}
		if used == nil {
			used = volumeSet{}
			n.Claims(func(claim string) { used.add(l, claim) })
		}
		total := len(used[d.Name])
		for handle := range wanted[d.Name] {
			if _, attached := used[d.Name][handle]; !attached {
				total++
			}
		}
		if total > int(*d.Allocatable.Count) {
			return false
		}
	}
	return true
}
