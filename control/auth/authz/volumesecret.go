package authz

import (
	corev1 "k8s.io/api/core/v1"
)

// ofVolume reports whether a volume of a pod on the node names the Secret for the driver's node service. It looks at the
// claims of that node's pods; what the controllers of drivers alone are given is not the node's to read.
func (n *Node) ofVolume(node, namespace, name string) bool {
	return n.podsOf(node, "", func(e extract) bool {
		for r := range e.refs {
			if r.kind == refClaim && n.claimNames(e.namespace+"/"+r.name, namespace, name) {
				return true
			}
		}
		return false
	})
}

func (n *Node) claimNames(claim, namespace, name string) bool {
	obj, ok, err := n.claims.GetByKey(claim)
	c, is := obj.(*corev1.PersistentVolumeClaim)
	if !ok || err != nil || !is || c.Spec.VolumeName == "" {
		return false
	}
	obj, ok, err = n.volumes.GetByKey(c.Spec.VolumeName)
	pv, is := obj.(*corev1.PersistentVolume)
	if !ok || err != nil || !is || pv.Spec.CSI == nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != c.UID {
		return false
	}
	for _, ref := range []*corev1.SecretReference{pv.Spec.CSI.NodeStageSecretRef, pv.Spec.CSI.NodePublishSecretRef, pv.Spec.CSI.NodeExpandSecretRef} {
		if ref != nil && ref.Namespace == namespace && ref.Name == name {
			return true
		}
	}
	return false
}
