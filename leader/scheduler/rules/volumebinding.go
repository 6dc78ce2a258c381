package rules

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"

	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

const (
	reasonVolumeAffinity = "node(s) didn't match PersistentVolume's node affinity"
	reasonNoVolume       = "node(s) didn't find available persistent volumes to bind"
	reasonVolumeGone     = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	reasonNoRoom         = "node(s) did not have enough free storage"
	reasonUnbound        = "pod has unbound immediate PersistentVolumeClaims"
)

// VolumeBinding refuses nodes that cannot use the volumes bound to the pod's claims, and nodes for which an unbound claim
// (WaitForFirstConsumer) has neither a volume nor a provisioner.
var VolumeBinding = Filter{
	Name: "VolumeBinding",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		claims, err := podClaims(c)
		if err != nil {
			return nil, forbid(err.Error())
		}
		if len(claims) == 0 {
			return nil, nil
		}
		b := &binding{listers: c.Listers}
		if r := b.sort(claims); r != nil {
			return nil, r
		}
		return b, nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Claim, Action: queue.Add | queue.Update, Helps: usesClaim},
		{Kind: queue.Volume, Action: queue.Add | queue.Update},
		{Kind: queue.StorageClass, Action: queue.Add | queue.Update},
		{Kind: queue.CSINode, Action: queue.Add | queue.Update},
		{Kind: queue.CSIDriver, Action: queue.Add | queue.Update},
		{Kind: queue.StorageCapacity, Action: queue.Add | queue.Update},
		{Kind: queue.Node, Action: queue.Add | queue.Update},
	},
}

// usesClaim reports whether the event's object is a claim of the pod.
func usesClaim(p *v1.Pod, e queue.Event) bool {
	claim, ok := e.New.(*v1.PersistentVolumeClaim)
	if !ok || claim.Namespace != p.Namespace {
		return false
	}
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim.Name ||
			v.Ephemeral != nil && ephemeral.VolumeClaimName(p, &v) == claim.Name
	})
}

// podClaims returns the pod's claims. Its error is the text that users read when a claim cannot be used yet.
func podClaims(c *Cycle) ([]*v1.PersistentVolumeClaim, error) {
	var claims []*v1.PersistentVolumeClaim
	p := c.Pod.Object
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		claim, err := c.Listers.Claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err := claimUsable(p, v, name, claim, err); err != nil {
			return nil, err
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

func claimUsable(p *v1.Pod, v *v1.Volume, name string, claim *v1.PersistentVolumeClaim, err error) error {
	switch {
	case errors.IsNotFound(err) && v.Ephemeral != nil:
		return fmt.Errorf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case err != nil:
		return err
	case claim.Status.Phase == v1.ClaimLost:
		return fmt.Errorf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", claim.Name, claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		return fmt.Errorf("persistentvolumeclaim %q is being deleted", claim.Name)
	case v.Ephemeral != nil:
		return ephemeral.VolumeIsForPod(p, claim)
	}
	return nil
}

// Bound reports whether a claim is bound to its volume and the volume controller has confirmed it.
func Bound(claim *v1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && claim.Annotations[volume.AnnBindCompleted] != ""
}

// binding is the check: the claims that are bound, and those that wait for a node.
type binding struct {
	listers *Listers
	bound   []*v1.PersistentVolumeClaim
	unbound []unboundClaim
	volumes map[string]*v1.PersistentVolume // of the bound claims, by name; read when first needed
}

// unboundClaim is a claim that is bound only when its pod has a node, with the volumes and classes that it may use. Cluster
// state for it is read once per attempt, when the first node needs it.
type unboundClaim struct {
	*v1.PersistentVolumeClaim
	volumes *candidates
	class   *storagev1.StorageClass
	room    *room
}

func (b *binding) sort(claims []*v1.PersistentVolumeClaim) *Refusal {
	for _, claim := range claims {
		if Bound(claim) {
			b.bound = append(b.bound, claim)
			continue
		}
		delayed, err := volume.IsDelayBindingMode(claim, b.listers.StorageClasses)
		if err != nil {
			return forbid(err.Error())
		}
		if !delayed || claim.Spec.VolumeName != "" {
			return forbid(reasonUnbound)
		}
		b.unbound = append(b.unbound, unboundClaim{PersistentVolumeClaim: claim})
	}
	return nil
}

// Admit implements Check.
func (b *binding) Admit(n *snapshot.Node) *Refusal {
	if reason := b.reachable(n.Object); reason != "" {
		return forbid(reason)
	}
	_, reason, err := b.plan(n.Object)
	switch {
	case err != nil:
		return forbid(err.Error())
	case reason != "":
		return forbid(reason)
	}
	return nil
}

func (b *binding) reachable(n *v1.Node) string {
	for _, claim := range b.bound {
		pv, err := b.volume(claim.Spec.VolumeName)
		if err != nil {
			return reasonVolumeGone
		}
		if volume.CheckNodeAffinity(pv, n.Labels) != nil {
			return reasonVolumeAffinity
		}
	}
	return ""
}

func (b *binding) volume(name string) (*v1.PersistentVolume, error) {
	if pv := b.volumes[name]; pv != nil {
		return pv, nil
	}
	pv, err := b.listers.Volumes.Get(name)
	if err != nil {
		return nil, err
	}
	if b.volumes == nil {
		b.volumes = map[string]*v1.PersistentVolume{}
	}
	b.volumes[name] = pv
	return pv, nil
}

// VolumePlan is the writes that a pod with unbound claims needs before it can start on its node.
type VolumePlan struct {
	Static    []StaticBinding             // volumes to bind to claims
	Provision []*v1.PersistentVolumeClaim // claims to provision for on the node
}

// StaticBinding gives an existing volume to a claim.
type StaticBinding struct {
	Volume *v1.PersistentVolume
	Claim  *v1.PersistentVolumeClaim
}

// Empty reports whether the plan has no writes.
func (p VolumePlan) Empty() bool { return len(p.Static)+len(p.Provision) == 0 }

// PlanVolumes returns the plan for a node that VolumeBinding has admitted; false when the node no longer passes.
func PlanVolumes(c *Cycle, n *v1.Node) (VolumePlan, bool) {
	claims, err := podClaims(c)
	b := &binding{listers: c.Listers}
	if err != nil || b.sort(claims) != nil || b.reachable(n) != "" {
		return VolumePlan{}, false
	}
	plan, reason, err := b.plan(n)
	return plan, reason == "" && err == nil
}

// plan says how the claims get their volumes on the node, or the reason why they do not.
func (b *binding) plan(n *v1.Node) (plan VolumePlan, reason string, err error) {
	var taken map[string]*v1.PersistentVolume
	for i := range b.unbound {
		claim := &b.unbound[i]
		if node, chosen := claim.Annotations[volume.AnnSelectedNode]; chosen {
			if node != n.Name {
				return plan, reasonNoVolume, nil
			}
		} else if pv, err := b.match(claim, n, taken); err != nil {
			return plan, "", err
		} else if pv != nil {
			if taken == nil {
				taken = map[string]*v1.PersistentVolume{}
			}
			taken[pv.Name] = pv
			plan.Static = append(plan.Static, StaticBinding{Volume: pv, Claim: claim.PersistentVolumeClaim})
			continue
		}
		if reason, err := b.provisionable(claim, n); reason != "" || err != nil {
			return plan, reason, err
		}
		plan.Provision = append(plan.Provision, claim.PersistentVolumeClaim)
	}
	return plan, "", nil
}

func (b *binding) match(claim *unboundClaim, n *v1.Node, taken map[string]*v1.PersistentVolume) (*v1.PersistentVolume, error) {
	if claim.volumes == nil {
		found, err := volumesFor(b.listers, claim.PersistentVolumeClaim)
		if err != nil {
			return nil, err
		}
		claim.volumes = found
	}
	free := claim.volumes.on(n)
	if len(free) == 0 {
		return nil, nil
	}
	return volume.FindMatchingVolume(claim.PersistentVolumeClaim, free, n, taken, true, true)
}

// provisionable says why the claim's class cannot provision for the node; "" when it can.
func (b *binding) provisionable(claim *unboundClaim, n *v1.Node) (reason string, err error) {
	if claim.class == nil {
		name := volume.GetPersistentVolumeClaimClass(claim.PersistentVolumeClaim)
		if name == "" {
			return "", fmt.Errorf("no class for claim %q", claim.Namespace+"/"+claim.Name)
		}
		class, err := b.listers.StorageClasses.Get(name)
		if err != nil {
			return "", fmt.Errorf("failed to find storage class %q", name)
		}
		claim.class = class
	}
	class := claim.class
	if class.Provisioner == "" || class.Provisioner == volume.NotSupportedProvisioner || !allowsTopology(class, n.Labels) {
		return reasonNoVolume, nil
	}
	if _, chosen := claim.Annotations[volume.AnnSelectedNode]; chosen {
		return "", nil // it is under way there: the room may be its own
	}
	if claim.room == nil {
		if claim.room, err = roomFor(b.listers, claim.PersistentVolumeClaim, class); err != nil {
			return "", err
		}
	}
	if !claim.room.on(n) {
		return reasonNoRoom, nil
	}
	return "", nil
}

// allowsTopology reports whether the class may provision for a node with these labels.
func allowsTopology(class *storagev1.StorageClass, nodeLabels map[string]string) bool {
	if len(class.AllowedTopologies) == 0 {
		return true
	}
	return slices.ContainsFunc(class.AllowedTopologies, func(t v1.TopologySelectorTerm) bool {
		for _, e := range t.MatchLabelExpressions {
			if value, ok := nodeLabels[e.Key]; !ok || !slices.Contains(e.Values, value) {
				return false
			}
		}
		return len(t.MatchLabelExpressions) > 0
	})
}
