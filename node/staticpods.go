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

// static runs the pods whose manifests lie in a directory, whether or not the
// API is there, and shows each in the API as a mirror pod.
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

// mirrorSeen: somebody wants a mirror pod gone, or a static pod's status has a
// mirror to be shown in now.
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

// syncStatic starts what is new in the directory and ends what has gone.
func (a *Agent) syncStatic(ctx context.Context, known map[types.UID]*v1.Pod) {
	pods, err := staticpod.Read(a.cfg.StaticPodDir, a.cfg.NodeName)
	if err != nil {
		a.log.Warn("static pods", "err", err)
	}
	want := map[types.UID]bool{}
	for _, p := range pods {
		want[p.UID] = true
		if known[p.UID] == nil {
			known[p.UID] = p
			a.follow(ctx, p)
		}
		if err := a.mirror(ctx, p); err != nil && ctx.Err() == nil {
			a.log.Warn("mirror pod not made", "pod", podloop.PodName(p), "err", err)
		}
	}
	for uid, p := range known {
		if want[uid] {
			continue
		}
		delete(known, uid)
		if w := a.worker(uid); w != nil {
			w.Leave()
		}
		a.unmirror(ctx, p)
	}
}

// mirror shows a static pod in the API; one of an older manifest goes first.
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
		a.log.Warn("mirror pod not deleted", "pod", podloop.PodName(p), "err", err)
	}
}

// keepsStatic reports whether a manifest asks for the pod of this UID.
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
