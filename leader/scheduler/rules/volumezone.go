package rules

import (
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

var refusedZone = forbid("node(s) had no available volume zone")

var zoneLabels = []string{
	v1.LabelTopologyZone, v1.LabelTopologyRegion, v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
}

// VolumeZone refuses nodes outside the zone or region that a bound volume's labels name. A label may name several,
// joined by "__".
var VolumeZone = Filter{
	Name: "VolumeZone",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		wanted := volumeZones(c)
		if len(wanted) == 0 {
			return nil, nil
		}
		return CheckFunc(func(n *snapshot.Node) *Refusal {
			for _, z := range wanted {
				if !z.holds(n.Object.Labels) {
					return refusedZone
				}
			}
			return nil
		}), nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Node, Action: queue.Add | queue.Update},
		{Kind: queue.Claim, Action: queue.Add | queue.Update, Helps: usesClaim},
		{Kind: queue.Volume, Action: queue.Add | queue.Update},
		{Kind: queue.StorageClass, Action: queue.Add},
	},
}

type zoneWish struct{ key, values string }

func (z zoneWish) holds(labels map[string]string) bool {
	value, ok := labels[z.key]
	if !ok {
		return false
	}
	for allowed := range strings.SplitSeq(z.values, "__") {
		if allowed == value {
			return true
		}
	}
	return false
}

func volumeZones(c *Cycle) []zoneWish {
	var wanted []zoneWish
	for _, key := range c.Pod.Claims {
		namespace, name, _ := strings.Cut(key, "/")
		claim, err := c.Listers.Claims.PersistentVolumeClaims(namespace).Get(name)
		if err != nil || claim.Spec.VolumeName == "" {
			continue
		}
		pv, err := c.Listers.Volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			continue
		}
		for _, label := range zoneLabels {
			if values, ok := pv.Labels[label]; ok {
				wanted = append(wanted, zoneWish{label, values})
			}
		}
	}
	return wanted
}
