package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	nodeutil "k8s.io/component-helpers/node/util"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/cri"
	"github.com/balsahq/balsa/node/shutdown"
)

// keepNode registers the Node and keeps its status. It writes the status when it changes, and every statusInterval otherwise.
func (a *Agent) keepNode(ctx context.Context) {
	delay := notReadyPoll
	for a.register(ctx) != nil {
		if !pause(ctx, delay) {
			return
		}
		delay = min(2*delay, 2*time.Second)
	}
	delay = notReadyPoll
	var written time.Time
	for {
		fault.Point("node/object")
		h := a.health(ctx)
		force := time.Since(written) > statusInterval
		wrote, err := a.writeNode(ctx, h, force)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("the Node's status cannot be written; it is tried again", "err", err)
		}
		if wrote {
			written = time.Now()
		}
		wait := runtimeInterval
		if err != nil || h.NotReady != "" {
			wait, delay = delay, longer(delay)
		} else {
			delay = notReadyPoll
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-a.nudgeNode:
		case <-t.C:
		}
		t.Stop()
	}
}

// register creates the Node, or sets the labels of an existing one.
func (a *Agent) register(ctx context.Context) error {
	nodes := a.cfg.Registrar.CoreV1().Nodes()
	mine := a.initialNode()
	got, err := nodes.Create(ctx, mine, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		got, err = nodes.Get(ctx, a.cfg.NodeName, metav1.GetOptions{})
		if err == nil {
			got, err = a.relabel(ctx, got, mine)
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			a.log.Warn("the Node cannot be registered; it is tried again, and no pod is bound to it meanwhile", "node", a.cfg.NodeName, "err", err)
		}
		return err
	}
	a.setNode(got)
	a.recorder.Event(nodeRef(got), v1.EventTypeNormal, "Starting", "Starting kubelet.")
	return nil
}

func nodeRef(n *v1.Node) *v1.ObjectReference {
	return &v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name, UID: types.UID(n.Name)}
}

func (a *Agent) relabel(ctx context.Context, got, mine *v1.Node) (*v1.Node, error) {
	want := map[string]string{}
	for k, v := range mine.Labels {
		if got.Labels[k] != v {
			want[k] = v
		}
	}
	if len(want) == 0 {
		return got, nil
	}
	b, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want}})
	if err != nil {
		return nil, err
	}
	return a.cfg.Registrar.CoreV1().Nodes().Patch(ctx, got.Name, types.StrategicMergePatchType, b, metav1.PatchOptions{})
}

// nodeSeen handles a version of this machine's Node from the API, where other writers change it.
func (a *Agent) nodeSeen(o any) {
	if n, ok := o.(*v1.Node); ok && n.Name == a.cfg.NodeName {
		a.setNode(n)
		if _, ready := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady); ready != nil && ready.Status == v1.ConditionUnknown {
			a.nudge() // the control plane thinks that the node is lost: report at once that it is not
		}
	}
}

// readNode reads the Node from the API. When the API does not answer, the known Node stays.
func (a *Agent) readNode(ctx context.Context) {
	n, err := a.cfg.Client.CoreV1().Nodes().Get(ctx, a.cfg.NodeName, metav1.GetOptions{})
	if err != nil {
		a.log.Debug("the Node cannot be read; pods are admitted by the version that is known", "err", err)
		return
	}
	a.setNode(n)
}

// setNode sets the known Node unless the known one is newer.
func (a *Agent) setNode(n *v1.Node) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if older, err := resourceversion.CompareResourceVersion(n.ResourceVersion, a.node.ResourceVersion); err == nil && older < 0 {
		return
	}
	if len(n.Status.Allocatable) == 0 {
		n = n.DeepCopy()
		n.Status.Capacity, n.Status.Allocatable = a.node.Status.Capacity, a.node.Status.Allocatable
	}
	a.node = n
}

// writeNode patches the Node's status when more than its heartbeat differs, or always with force. It reports whether it wrote.
func (a *Agent) writeNode(ctx context.Context, h health, force bool) (bool, error) {
	old := a.Node()
	now := metav1.NewTime(time.Now())
	s := a.nodeStatus(&old.Status, h, now)
	if !force && sameNodeStatus(old.Status, s) {
		return false, nil
	}
	before, err := json.Marshal(v1.Node{Status: old.Status})
	if err != nil {
		return false, err
	}
	after, err := json.Marshal(v1.Node{Status: s})
	if err != nil {
		return false, err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, v1.Node{})
	if err != nil {
		return false, fmt.Errorf("difference of node status: %w", err)
	}
	// A strategic merge patch has one address a type, but a dual-stack node has two InternalIPs: the list is replaced.
	if patch, err = replaceAddresses(patch, s.Addresses); err != nil {
		return false, err
	}
	got, err := a.cfg.Client.CoreV1().Nodes().Patch(ctx, a.cfg.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		if err = a.register(ctx); err == nil {
			a.nudge()
		}
		return false, err
	}
	if err != nil {
		return false, err
	}
	a.tellReady(old, got)
	a.setNode(got)
	return true, nil
}

func replaceAddresses(patch []byte, addrs []v1.NodeAddress) ([]byte, error) {
	var m map[string]any
	if err := json.Unmarshal(patch, &m); err != nil {
		return nil, err
	}
	s, ok := m["status"].(map[string]any)
	if !ok || s["addresses"] == nil {
		return patch, nil
	}
	list := []any{}
	for _, ad := range addrs {
		list = append(list, ad)
	}
	s["addresses"] = append(list, map[string]any{"$patch": "replace"})
	delete(s, "$setElementOrder/addresses")
	return json.Marshal(m)
}

func (a *Agent) tellReady(old, got *v1.Node) {
	status := func(n *v1.Node) v1.ConditionStatus {
		_, c := nodeutil.GetNodeCondition(&n.Status, v1.NodeReady)
		if c == nil {
			return ""
		}
		return c.Status
	}
	if status(old) == status(got) {
		return
	}
	reason := "NodeNotReady"
	if status(got) == v1.ConditionTrue {
		reason = "NodeReady"
	}
	a.recorder.Eventf(nodeRef(got), v1.EventTypeNormal, reason, "Node %s status is now: %s", got.Name, reason)
}

func sameNodeStatus(a, b v1.NodeStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, s := range []*v1.NodeStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime, s.Conditions[i].LastTransitionTime = metav1.Time{}, metav1.Time{}
		}
	}
	return apiequality.Semantic.DeepEqual(x, y)
}

// health returns the state of the runtime, the network and the machine.
func (a *Agent) health(ctx context.Context) health {
	h := health{VolumesInUse: a.volumesInUse(), Pressure: a.pressure()}
	select {
	case <-a.connected:
	default:
		h.NotReady = "container runtime is down"
		return h
	}
	h.RuntimeName, h.RuntimeVers = a.runtimeName, a.runtimeVer
	var faults []string
	if a.shuttingDown.Load() {
		faults = append(faults, shutdown.NotReady)
	}
	asking, cancel := context.WithTimeout(ctx, a.patience())
	defer cancel()
	st, err := a.runtime.Status(asking, false)
	switch {
	case err != nil && asking.Err() != nil:
		faults = append(faults, "container runtime is down: it does not answer")
	case err != nil:
		faults = append(faults, "container runtime is down: "+cri.Message(err))
	default:
		a.answered = time.Now()
		faults = append(faults, cri.ConditionFaults(st.Status)...)
		h.Handlers, h.StrictGroups = st.RuntimeHandlers, st.GetFeatures().GetSupplementalGroupsPolicy()
		a.setFeatures(st)
	}
	if n := a.cfg.Network; n != nil {
		if err := n.Ready(); err != nil {
			faults = append(faults, "pod network not ready: "+err.Error())
		}
	}
	h.NotReady = strings.Join(faults, ", ")
	h.Images = a.imageList(ctx)
	return h
}

// patience returns how long an answer of the runtime is waited for, so that one that hangs is noticed runtimePatience after it
// has last answered.
func (a *Agent) patience() time.Duration {
	if a.answered.IsZero() {
		return runtimePatience
	}
	return max(runtimeLeast, runtimePatience-time.Since(a.answered))
}

// imageList returns the images on the node. It lists them when the agent has changed them, and once every statusInterval,
// because other programs may pull, too.
func (a *Agent) imageList(ctx context.Context) []*runtimeapi.Image {
	if !a.imagesStale.Load() && time.Since(a.listed) < statusInterval {
		return a.imagesKnown
	}
	a.imagesStale.Store(false)
	ctx, cancel := context.WithTimeout(ctx, runtimeLeast)
	defer cancel()
	im, err := a.images.ListImages(ctx, nil)
	if err != nil {
		a.imagesStale.Store(true)
		return a.imagesKnown
	}
	a.imagesKnown, a.listed = im, time.Now()
	return im
}

// setFeatures keeps the features that the runtime reports.
func (a *Agent) setFeatures(st *runtimeapi.StatusResponse) {
	m := map[string]*runtimeapi.RuntimeHandlerFeatures{}
	for _, h := range st.RuntimeHandlers {
		m[h.Name] = h.Features
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers, a.strictGroups = m, st.GetFeatures().GetSupplementalGroupsPolicy()
}
