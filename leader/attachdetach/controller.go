package attachdetach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/balsahq/balsa/leader/pods"
	"github.com/balsahq/balsa/leader/workqueue"
)

const (
	attachmentsByNode   = "balsa/attachment-node"
	attachmentsByVolume = "balsa/attachment-volume"
	// unboundInterval is how soon a pod is looked at again whose claim has no volume yet.
	unboundInterval = 5 * time.Second
)

type controller struct {
	env         workqueue.Env
	pods        cache.Indexer
	nodes       corelisters.NodeLister
	claims      corelisters.PersistentVolumeClaimLister
	volumes     corelisters.PersistentVolumeLister
	drivers     storagelisters.CSIDriverLister
	attachments cache.Indexer
	loop        *workqueue.Loop[string]

	mu    sync.Mutex
	since map[types.UID]time.Time // since when a VolumeAttachment is not needed
}

// New returns the controller that attaches and detaches volumes.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	core, storage := env.Informers.Core().V1(), env.Informers.Storage().V1()
	podInformer, attachments := core.Pods().Informer(), storage.VolumeAttachments().Informer()
	c := &controller{env: env, pods: podInformer.GetIndexer(), nodes: core.Nodes().Lister(), claims: core.PersistentVolumeClaims().Lister(),
		volumes: core.PersistentVolumes().Lister(), drivers: storage.CSIDrivers().Lister(), attachments: attachments.GetIndexer(), since: map[types.UID]time.Time{}}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	workqueue.Need(c.loop, core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), storage.CSIDrivers().Informer())
	return c.loop, errors.Join(
		pods.IndexByNode(podInformer),
		indexAttachments(c.attachments),
		workqueue.Watch(c.loop, podInformer, func(old, now *v1.Pod) {
			p := workqueue.Newest(old, now)
			if p.Spec.NodeName != "" && usesClaims(p) && (old == nil || now == nil || old.Spec.NodeName == "" || pods.Terminal(old) != pods.Terminal(now)) {
				c.loop.Add(p.Spec.NodeName)
			}
		}),
		workqueue.Watch(c.loop, attachments, c.attachmentChanged),
		workqueue.Watch(c.loop, core.Nodes().Informer(), func(old, now *v1.Node) {
			if old == nil || now == nil || ready(old) != ready(now) || outOfService(old) != outOfService(now) || !slices.Equal(old.Status.VolumesInUse, now.Status.VolumesInUse) {
				c.loop.Add(workqueue.Newest(old, now).Name)
			}
		}),
	)
}

func indexAttachments(indexer cache.Indexer) error {
	index := func(of func(*storagev1.VolumeAttachment) string) cache.IndexFunc {
		return func(o any) ([]string, error) {
			if va, ok := o.(*storagev1.VolumeAttachment); ok && of(va) != "" {
				return []string{of(va)}, nil
			}
			return nil, nil
		}
	}
	err := indexer.AddIndexers(cache.Indexers{
		attachmentsByNode: index(func(va *storagev1.VolumeAttachment) string { return va.Spec.NodeName }), attachmentsByVolume: index(volumeOf),
	})
	if err != nil {
		return fmt.Errorf("indexing attachments: %w", err)
	}
	return nil
}

func volumeOf(va *storagev1.VolumeAttachment) string {
	if name := va.Spec.Source.PersistentVolumeName; name != nil {
		return *name
	}
	return ""
}

func usesClaims(p *v1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.PersistentVolumeClaim != nil || v.Ephemeral != nil })
}

// attachmentChanged tells pods what became of an attachment.
func (c *controller) attachmentChanged(old, now *storagev1.VolumeAttachment) {
	va := workqueue.Newest(old, now)
	c.loop.Add(va.Spec.NodeName)
	if now == nil {
		c.mu.Lock()
		delete(c.since, va.UID)
		c.mu.Unlock()
		return
	}
	switch was := old != nil && old.Status.Attached; {
	case old == nil:
	case now.Status.Attached && !was:
		c.tell(now, v1.EventTypeNormal, "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volumeOf(now)))
	case now.Status.AttachError != nil && (old.Status.AttachError == nil || old.Status.AttachError.Message != now.Status.AttachError.Message):
		c.tell(now, v1.EventTypeWarning, "FailedAttachVolume", fmt.Sprintf("AttachVolume.Attach failed for volume %q : %s", volumeOf(now), now.Status.AttachError.Message))
	}
}

// tell records an event for the pods of a node that use the attached volume.
func (c *controller) tell(va *storagev1.VolumeAttachment, kind, reason, text string) {
	for _, p := range pods.OnNode(c.pods, va.Spec.NodeName) {
		found, _ := c.volumesOf(p)
		for _, pv := range found {
			if pv.Name == volumeOf(va) {
				c.env.Events.Event(p, kind, reason, text)
			}
		}
	}
}

// volumesOf lists the volumes of a pod that must be attached; waits: a claim has none yet.
func (c *controller) volumesOf(p *v1.Pod) (out []*v1.PersistentVolume, waits bool) {
	if pods.Terminal(p) {
		return nil, false
	}
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		name := ""
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		claim, err := c.claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil || claim.Spec.VolumeName == "" || claim.Status.Phase != v1.ClaimBound || v.Ephemeral != nil && ephemeral.VolumeIsForPod(p, claim) != nil {
			waits = true
			continue
		}
		pv, err := c.volumes.Get(claim.Spec.VolumeName)
		if err != nil || pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID != claim.UID {
			waits = true
			continue
		}
		if pv.Spec.CSI != nil && c.attaches(pv.Spec.CSI.Driver) {
			out = append(out, pv)
		}
	}
	return out, waits
}

// attaches reports whether volumes of a driver are attached. As in upstream, they are when no CSIDriver object describes it.
func (c *controller) attaches(driver string) bool {
	d, err := c.drivers.Get(driver)
	return err != nil || d.Spec.AttachRequired == nil || *d.Spec.AttachRequired
}

func (c *controller) reconcile(ctx context.Context, node string) error {
	s, users, waits, err := c.look(node)
	if err != nil {
		return err
	}
	p := decide(s)
	var errs []error
	for _, pv := range p.blocked {
		for _, user := range users[pv.Name] {
			c.env.Events.Eventf(user, v1.EventTypeWarning, "FailedAttachVolume",
				"Multi-Attach error for volume %q Volume is already exclusively attached to node %s and can't be attached to another", pv.Name, s.holders[pv.Name])
		}
	}
	client := c.env.Client.StorageV1().VolumeAttachments()
	for _, pv := range p.attach {
		_, err := client.Create(ctx, attachment(pv, node), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("attach volume %s: %w", pv.Name, err))
		}
	}
	for _, va := range p.detach {
		err := client.Delete(ctx, va.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(va.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("detach volume %s: %w", volumeOf(va), err))
		}
	}
	errs = append(errs, c.report(ctx, s.node))
	if p.again > 0 {
		c.loop.AddAfter(node, p.again)
	}
	if waits && s.node != nil {
		c.loop.AddAfter(node, unboundInterval)
	}
	return errors.Join(errs...)
}

// look gathers what is known of a node. users are its pods by the volume that they use.
func (c *controller) look(node string) (s situation, users map[string][]*v1.Pod, waits bool, err error) {
	s = situation{wanted: map[string]*v1.PersistentVolume{}, have: map[string]have{}, holders: map[string]string{}, now: time.Now()}
	users = map[string][]*v1.Pod{}
	if s.node, err = c.nodes.Get(node); apierrors.IsNotFound(err) {
		s.node, err = nil, nil
	}
	if err != nil {
		return s, nil, false, err
	}
	for _, p := range pods.OnNode(c.pods, node) {
		found, some := c.volumesOf(p)
		waits = waits || some
		for _, pv := range found {
			s.wanted[attachmentName(pv.Spec.CSI, node)] = pv
			users[pv.Name] = append(users[pv.Name], p)
		}
	}
	for _, va := range c.find(attachmentsByNode, node) {
		if source, ok := c.sourceOf(va); ok && va.Name == attachmentName(source, node) {
			s.have[va.Name] = have{va, inUseName(source), c.unneeded(va, s.wanted[va.Name] != nil, s.now)}
		}
	}
	for _, pv := range s.wanted {
		for _, va := range c.find(attachmentsByVolume, pv.Name) {
			if va.Spec.NodeName != node {
				s.holders[pv.Name] = va.Spec.NodeName
			}
		}
	}
	return s, users, waits, nil
}

// unneeded remembers since when a VolumeAttachment is needed by no pod.
func (c *controller) unneeded(va *storagev1.VolumeAttachment, needed bool, now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if needed {
		delete(c.since, va.UID)
		return time.Time{}
	}
	if _, ok := c.since[va.UID]; !ok {
		c.since[va.UID] = now
	}
	return c.since[va.UID]
}

func (c *controller) find(index, value string) (out []*storagev1.VolumeAttachment) {
	found, err := c.attachments.ByIndex(index, value)
	if err != nil {
		return nil // the index is there
	}
	for _, o := range found {
		if va, ok := o.(*storagev1.VolumeAttachment); ok {
			out = append(out, va)
		}
	}
	return out
}

// sourceOf is the volume behind an attachment. It stays known while it is attached: its finalizers see to that.
func (c *controller) sourceOf(va *storagev1.VolumeAttachment) (*v1.CSIPersistentVolumeSource, bool) {
	pv, err := c.volumes.Get(volumeOf(va))
	if err != nil || pv.Spec.CSI == nil {
		return nil, false
	}
	return pv.Spec.CSI, true
}

// report writes into the Node's status what is attached to it.
func (c *controller) report(ctx context.Context, node *v1.Node) error {
	if node == nil {
		return nil
	}
	now := attachedTo(c.find(attachmentsByNode, node.Name), func(va *storagev1.VolumeAttachment) (v1.UniqueVolumeName, bool) {
		source, ok := c.sourceOf(va)
		if !ok {
			return "", false
		}
		return inUseName(source), true
	})
	if slices.Equal(now, node.Status.VolumesAttached) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"volumesAttached": now}})
	if err != nil {
		return err
	}
	_, err = c.env.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
