package rules

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/balsahq/balsa/leader/scheduler/devices"
	"github.com/balsahq/balsa/leader/scheduler/queue"
	"github.com/balsahq/balsa/leader/scheduler/snapshot"
)

const (
	reasonDeviceAway   = "resourceclaim not available on the node"
	reasonNoDevices    = "cannot allocate all claims"
	reasonStaleDevices = "cannot schedule extended resource claim"
	// allocationLimit is how long the search for devices of one node may take, as upstream.
	allocationLimit = 10 * time.Second
)

// Devices refuses nodes on which the pod's ResourceClaims have no devices: the node has none that match, others have them, or the claim
// was given some that are elsewhere. Requests for extended resources count too, where a DeviceClass stands for them and the node has
// none of its own. The matching is upstream's library.
var Devices = Filter{
	Name: "DynamicResources",
	Prepare: func(c *Cycle) (Check, *Refusal) {
		d, refusal := prepareDevices(c)
		if d == nil || refusal != nil {
			return nil, refusal
		}
		c.devices = d
		return d, nil
	},
	Undo: []queue.Hint{
		{Kind: queue.Node, Action: queue.Add | queue.Update},
		{Kind: queue.ResourceClaim, Action: queue.Add | queue.Update, Helps: claimHelps},
		{Kind: queue.DeviceClass, Action: queue.Add | queue.Update},
		{Kind: queue.ResourceSlice, Action: queue.Add | queue.Update},
	},
}

// claimHelps reports whether a claim gave its devices back, or is one of the pod's and has a new status.
func claimHelps(p *v1.Pod, e queue.Event) bool {
	old, _ := e.Old.(*resourceapi.ResourceClaim)
	now, _ := e.New.(*resourceapi.ResourceClaim)
	if now == nil {
		return true
	}
	if old != nil && old.Status.Allocation != nil && now.Status.Allocation == nil {
		return true
	}
	if old != nil && equality.Semantic.DeepEqual(&old.Status, &now.Status) || now.Namespace != p.Namespace {
		return false
	}
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(entry v1.PodResourceClaim) bool {
		name, _, err := resourceclaim.Name(p, &entry)
		return err == nil && name != nil && *name == now.Name
	})
}

// deviceCheck is the check: the pod's claims, and what Admit found for each node.
type deviceCheck struct {
	pod       *snapshot.Pod
	book      *devices.Book
	claims    []podClaim
	extended  *resourceapi.ResourceClaim // for extended resources; nil when no class stands for one
	backed    map[v1.ResourceName]string // those resources, with their class
	allocator structured.Allocator       // nil when every claim has its devices
	found     map[string]*DevicePlan     // by node
	away      []*resourceapi.ResourceClaim
}

// podClaim is a claim that the pod names, and where it is if it has devices.
type podClaim struct {
	*resourceapi.ResourceClaim
	nodes *nodeaffinity.NodeSelector // nil: every node
}

func prepareDevices(c *Cycle) (*deviceCheck, *Refusal) {
	pod, book := c.Pod.Object, c.Listers.Devices
	d := &deviceCheck{pod: c.Pod, book: book, found: map[string]*DevicePlan{}, backed: book.Backed(c.Pod.Request.Scalar)}
	if len(pod.Spec.ResourceClaims) == 0 && d.backed == nil {
		return nil, nil
	}
	if err := d.addClaims(pod); err != nil {
		return nil, forbid(err.Error())
	}
	if err := d.addExtended(pod); err != nil {
		return nil, forbid(err.Error())
	}
	if len(d.claims) == 0 && d.extended == nil {
		return nil, nil
	}
	if d.extended == nil && !slices.ContainsFunc(d.claims, func(p podClaim) bool { return p.Status.Allocation == nil }) {
		return d, nil
	}
	ctx, cancel := allocation()
	defer cancel()
	var err error
	if d.allocator, err = book.Allocator(ctx); err != nil {
		return nil, forbid(err.Error())
	}
	return d, nil
}

// allocation bounds the search on one node.
func allocation() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), allocationLimit)
}

// addClaims reads the claims that the pod names. Its error is the text that users read when a claim cannot be used yet.
func (d *deviceCheck) addClaims(pod *v1.Pod) error {
	for i := range pod.Spec.ResourceClaims {
		name, mustOwn, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return err
		}
		if name == nil {
			continue // the entry needs no claim
		}
		claim, err := d.book.Claim(pod.Namespace, *name)
		if err != nil {
			return err
		}
		if claim.DeletionTimestamp != nil {
			return fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		}
		if mustOwn {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return err
			}
		}
		if err := d.addClaim(claim); err != nil {
			return err
		}
	}
	return nil
}

func (d *deviceCheck) addClaim(claim *resourceapi.ResourceClaim) (err error) {
	p := podClaim{ResourceClaim: claim}
	if a := claim.Status.Allocation; a == nil {
		if d.book.Reserved(claim.UID) {
			return fmt.Errorf("resource claim %s/%s is in the process of being allocated", claim.Namespace, claim.Name)
		}
		err = d.classesExist(claim)
	} else if a.NodeSelector != nil {
		p.nodes, err = nodeaffinity.NewNodeSelector(a.NodeSelector)
	}
	d.claims = append(d.claims, p)
	return err
}

// classesExist returns an error that names the first class that is missing: no node can help.
func (d *deviceCheck) classesExist(claim *resourceapi.ResourceClaim) error {
	check := func(request, class string) error {
		if _, err := d.book.Class(class); apierrors.IsNotFound(err) {
			return fmt.Errorf("request %s: device class %s does not exist", request, class)
		}
		return nil
	}
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if r.Exactly == nil && len(r.FirstAvailable) == 0 {
			return fmt.Errorf("resource claim %s/%s, request %s: unknown request type", claim.Namespace, claim.Name, r.Name)
		}
		if r.Exactly != nil {
			if err := check(r.Name, r.Exactly.DeviceClassName); err != nil {
				return err
			}
		}
		for j := range r.FirstAvailable {
			if err := check(r.Name+"/"+r.FirstAvailable[j].Name, r.FirstAvailable[j].DeviceClassName); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *deviceCheck) addExtended(pod *v1.Pod) (err error) {
	if d.backed == nil {
		return nil
	}
	if d.extended, err = d.book.ExtendedClaim(pod.UID); err != nil || d.extended != nil {
		return err // one of an earlier attempt has requests: no node passes, and Obsolete returns it
	}
	d.extended = devices.NewExtendedClaim(pod)
	return nil
}

// Admit implements Check.
func (d *deviceCheck) Admit(n *snapshot.Node) *Refusal {
	plan := &DevicePlan{pod: d.pod.Object}
	if d.extended != nil {
		if len(d.extended.Spec.Devices.Requests) > 0 {
			d.setAway(d.extended)
			return forbid(reasonStaleDevices)
		}
		plan.addExtended(d, n)
	}
	away := false
	for _, claim := range d.claims {
		if claim.nodes != nil && !claim.nodes.Match(n.Object) || failedBinding(claim.ResourceClaim, d.book.Now()) {
			d.setAway(claim.ResourceClaim)
			away = true
		}
	}
	if away {
		return forbid(reasonDeviceAway)
	}
	if refusal := d.allocate(plan, n); refusal != nil {
		return refusal
	}
	d.found[n.Name()] = plan
	return nil
}

// allocate adds the devices that the claims without any would get on the node.
func (d *deviceCheck) allocate(plan *DevicePlan, n *snapshot.Node) *Refusal {
	var wanted []*resourceapi.ResourceClaim
	for _, claim := range d.claims {
		if claim.Status.Allocation == nil {
			wanted = append(wanted, claim.ResourceClaim)
		}
		plan.Claims = append(plan.Claims, ClaimPlan{Claim: claim.ResourceClaim})
	}
	if plan.Extended != nil {
		wanted = append(wanted, plan.Extended.Claim)
	}
	if len(wanted) == 0 {
		return nil
	}
	ctx, cancel := allocation()
	defer cancel()
	results, err := d.allocator.Allocate(ctx, n.Object, wanted)
	switch {
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return forbid(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return abort(fmt.Sprintf("node %s: timed out trying to allocate devices", n.Name()))
	case err != nil:
		return abort(err.Error())
	case len(results) != len(wanted):
		return forbid(reasonNoDevices)
	}
	next := 0
	for i := range plan.Claims {
		if plan.Claims[i].Claim.Status.Allocation == nil {
			plan.Claims[i].Allocation = &results[next]
			next++
		}
	}
	if plan.Extended != nil {
		plan.Extended.Allocation = &results[next]
	}
	return nil
}

func (d *deviceCheck) setAway(claim *resourceapi.ResourceClaim) {
	if !slices.Contains(d.away, claim) {
		d.away = append(d.away, claim)
	}
}

// Obsolete returns a claim that keeps the pod from every node and that no other pod uses: its devices are on a node that does not
// admit the pod, or could not be bound. The pod may fit when the claim gives its devices back; a claim for extended resources is to be
// deleted. nil: there is none.
func Obsolete(c *Cycle) *resourceapi.ResourceClaim {
	if c.devices == nil {
		return nil
	}
	for _, claim := range c.devices.away {
		users := claim.Status.ReservedFor
		if claim == c.devices.extended || len(users) == 0 || len(users) == 1 && users[0].UID == c.Pod.Object.UID {
			return claim
		}
	}
	return nil
}

// IsExtended reports whether a claim was made for a pod's extended resources.
func IsExtended(claim *resourceapi.ResourceClaim) bool {
	return metav1.HasAnnotation(claim.ObjectMeta, resourceapi.ExtendedResourceClaimAnnotation)
}
