package rules

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
)

const byUse = "balsa/volume-use"

// IndexVolumes adds an index to PersistentVolumes: available volumes by their class, bound ones by their claim.
func IndexVolumes(volumes cache.Indexer) error {
	if _, ok := volumes.GetIndexers()[byUse]; ok {
		return nil
	}
	err := volumes.AddIndexers(cache.Indexers{byUse: func(o any) ([]string, error) {
		pv, ok := o.(*v1.PersistentVolume)
		if !ok {
			return nil, nil
		}
		if c := pv.Spec.ClaimRef; c != nil {
			return []string{ofClaim(c.Namespace, c.Name)}, nil
		}
		return []string{ofClass(volume.GetPersistentVolumeClass(pv))}, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing volumes by class: %w", err)
	}
	return nil
}

func ofClass(class string) string           { return "class " + class }
func ofClaim(namespace, name string) string { return "claim " + namespace + "/" + name }

// place is a label of a node.
type place struct{ key, value string }

// candidates are the volumes that one claim may have, by the place where they are: what a node can reach is found
// without a look at the volumes of all others.
type candidates struct {
	keys     []string // of the places
	at       map[place][]*v1.PersistentVolume
	anywhere []*v1.PersistentVolume // or where only the volume's own affinity tells
}

// volumesFor gathers the candidates for a claim: one pass over the free volumes of its class, once for each attempt.
func volumesFor(l *Listers, claim *v1.PersistentVolumeClaim) (*candidates, error) {
	c := &candidates{at: map[place][]*v1.PersistentVolume{}}
	keys := map[string]bool{}
	for _, use := range []string{ofClaim(claim.Namespace, claim.Name), ofClass(volume.GetPersistentVolumeClaimClass(claim))} {
		found, err := l.VolumeIndex.ByIndex(byUse, use)
		if err != nil {
			return nil, err
		}
		for _, o := range found {
			pv, ok := o.(*v1.PersistentVolume)
			if !ok || reservedForOther(l, pv, claim) {
				continue
			}
			p, ok := placeOf(pv)
			if !ok || pv.Spec.ClaimRef != nil { // one that is the claim's own decides on every node
				c.anywhere = append(c.anywhere, pv)
				continue
			}
			if !keys[p.key] {
				keys[p.key], c.keys = true, append(c.keys, p.key)
			}
			c.at[p] = append(c.at[p], pv)
		}
	}
	return c, nil
}

func reservedForOther(l *Listers, pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) bool {
	if l.ReservedVolumes == nil {
		return false
	}
	owner, reserved := l.ReservedVolumes(pv.Name)
	return reserved && owner != claim.Namespace+"/"+claim.Name
}

// placeOf is the label that a node needs to reach the volume, where the volume's affinity is just that.
func placeOf(pv *v1.PersistentVolume) (place, bool) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil || len(pv.Spec.NodeAffinity.Required.NodeSelectorTerms) != 1 {
		return place{}, false
	}
	t := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0]
	if len(t.MatchFields) != 0 || len(t.MatchExpressions) == 0 {
		return place{}, false
	}
	e := t.MatchExpressions[0]
	if e.Operator != v1.NodeSelectorOpIn || len(e.Values) != 1 {
		return place{}, false
	}
	return place{e.Key, e.Values[0]}, true
}

// on are the candidates that the node may reach; FindMatchingVolume judges the rest of their affinity.
func (c *candidates) on(n *v1.Node) []*v1.PersistentVolume {
	if len(c.keys) == 0 {
		return c.anywhere
	}
	out := c.anywhere[:len(c.anywhere):len(c.anywhere)]
	for _, key := range c.keys {
		if value, ok := n.Labels[key]; ok {
			out = append(out, c.at[place{key, value}]...)
		}
	}
	return out
}
