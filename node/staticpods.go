package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/staticpod"
)

// static runs the pods whose manifests are in a directory, whether or not the API answers, and shows each as a mirror pod in
// the API.
func (a *Agent) static(ctx context.Context) {
	if a.cfg.StaticPodDir == "" {
		return
	}
	changes, stop := a.watchDir(a.cfg.StaticPodDir)
	defer stop()
	tick := time.NewTicker(gcInterval)
	defer tick.Stop()
	known := map[types.UID]*v1.Pod{}
	for {
		a.syncStatic(ctx, known)
		select {
		case <-ctx.Done():
			return
		case <-changes:
			if !pause(ctx, staticSettle) { // a file is written in several steps
				return
			}
			for len(changes) > 0 {
				<-changes
			}
		case <-a.mirrors:
		case <-tick.C:
		}
	}
}

// mirrorSeen handles a mirror pod from the API. A new mirror makes the worker write its status; a deleted one is created
// again.
func (a *Agent) mirrorSeen(m *v1.Pod) {
	if w := a.worker(types.UID(m.Annotations[staticpod.AnnotationMirror])); w != nil {
		w.Wake()
	}
	if m.DeletionTimestamp != nil {
		a.nudgeStatic()
	}
}

func (a *Agent) nudgeStatic() {
	select {
	case a.mirrors <- struct{}{}:
	default:
	}
}

const staticSettle = 100 * time.Millisecond

// syncStatic starts the pods of new manifests and ends those whose manifest is gone.
func (a *Agent) syncStatic(ctx context.Context, known map[types.UID]*v1.Pod) {
	pods, err := staticpod.Read(a.cfg.StaticPodDir, a.cfg.NodeName)
	if err != nil {
		a.log.Warn("manifests of static pods cannot be read; their pods are not run", "err", err)
	}
	want := map[types.UID]bool{}
	for _, p := range pods {
		want[p.UID] = true
		if known[p.UID] == nil {
			known[p.UID] = p
			a.follow(ctx, p)
		}
	}
	for _, p := range pods { // after all have started: the API may not answer
		if err := a.mirror(ctx, p); err != nil && ctx.Err() == nil {
			a.log.Warn("a mirror pod cannot be created; the API does not show the static pod until the next try", "pod", podloop.PodName(p), "err", err)
		}
	}
	for uid, p := range known {
		if want[uid] {
			continue
		}
		delete(known, uid)
		if w := a.worker(uid); w != nil {
			w.Remove()
		}
		a.unmirror(ctx, p)
	}
}

// mirror creates the mirror of a static pod in the API. It deletes the mirror of an older manifest first.
func (a *Agent) mirror(ctx context.Context, p *v1.Pod) error {
	pods := a.cfg.Client.CoreV1().Pods(p.Namespace)
	if have, err := a.pods.Pods(p.Namespace).Get(p.Name); err == nil {
		if have.Annotations[staticpod.AnnotationMirror] == p.Annotations[staticpod.AnnotationHash] && have.DeletionTimestamp == nil {
			return nil
		}
		a.unmirror(ctx, have)
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion = "", ""
	m.Annotations[staticpod.AnnotationMirror] = p.Annotations[staticpod.AnnotationHash]
	if n := a.Node(); n.UID != "" {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &yes}}
	}
	_, err := pods.Create(ctx, m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (a *Agent) unmirror(ctx context.Context, p *v1.Pod) {
	now := int64(0)
	err := a.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
		a.log.Warn("a mirror pod cannot be deleted; the API goes on showing it", "pod", podloop.PodName(p), "err", err)
	}
}

// keepsStatic reports whether a manifest of this node has the UID.
func (a *Agent) keepsStatic(uid types.UID) bool {
	if a.cfg.StaticPodDir == "" {
		return false
	}
	pods, _ := staticpod.Read(a.cfg.StaticPodDir, a.cfg.NodeName)
	for _, p := range pods {
		if p.UID == uid {
			return true
		}
	}
	return false
}
