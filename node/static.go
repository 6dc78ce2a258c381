package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/balsahq/balsa/node/podloop"
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
	if w := a.worker(types.UID(m.Annotations[annMirror])); w != nil {
		w.mailbox.post(func() {})
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

// watchDir tells when something in a directory changes; a nil channel where
// the system cannot.
func watchDir(dir string) (<-chan fsnotify.Event, func()) {
	watch, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, func() {}
	}
	stop := func() { _ = watch.Close() }
	if err := watch.Add(dir); err != nil {
		stop()
		return nil, func() {}
	}
	return watch.Events, stop
}

const staticSettle = 100 * time.Millisecond

// syncStatic starts what is new in the directory and ends what has gone.
func (a *Agent) syncStatic(ctx context.Context, known map[types.UID]*v1.Pod) {
	pods, err := a.cfg.readStatic()
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
			w.leaving.Store(true)
			w.mailbox.post(w.gone)
		}
		a.unmirror(ctx, p)
	}
}

// readStatic reads every manifest; a faulty one keeps back no other.
func (c *Config) readStatic() ([]*v1.Pod, error) {
	files, err := filepath.Glob(filepath.Join(c.StaticPodDir, "*"))
	if err != nil {
		return nil, err
	}
	sort.Strings(files)
	var out []*v1.Pod
	var faults []string
	for _, f := range files {
		if ext := filepath.Ext(f); ext != ".yaml" && ext != ".yml" && ext != ".json" {
			continue
		}
		p, err := c.staticPod(f)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", f, err))
			continue
		}
		out = append(out, p)
	}
	if len(faults) > 0 {
		return out, fmt.Errorf("static pods: %s", strings.Join(faults, "; "))
	}
	return out, nil
}

// staticPod reads one manifest. Its UID follows from its content, so a change
// is another pod.
func (c *Config) staticPod(file string) (*v1.Pod, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(b, nil, nil)
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*v1.Pod)
	if !ok {
		return nil, fmt.Errorf("%T is not a v1 Pod", obj)
	}
	corev1defaults.SetObjectDefaults_Pod(pod)
	sum := sha256.Sum256(append(b, c.NodeName+file...))
	hash := hex.EncodeToString(sum[:16])
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Name += "-" + c.NodeName
	pod.UID, pod.Spec.NodeName = types.UID(hash), c.NodeName
	pod.Annotations[annHashOf], pod.Annotations[annSource] = hash, "file"
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	pod.Status = v1.PodStatus{Phase: v1.PodPending}
	return pod, nil
}

// isStatic reports whether the pod came from a file.
func isStatic(p *v1.Pod) bool { return p.Annotations[annSource] == "file" }

// mirror shows a static pod in the API; one of an older manifest goes first.
func (a *Agent) mirror(ctx context.Context, p *v1.Pod) error {
	pods := a.cfg.Client.CoreV1().Pods(p.Namespace)
	if have, err := a.pods.Pods(p.Namespace).Get(p.Name); err == nil {
		if have.Annotations[annMirror] == p.Annotations[annHashOf] && have.DeletionTimestamp == nil {
			return nil
		}
		a.unmirror(ctx, have)
	}
	m := p.DeepCopy()
	m.UID, m.ResourceVersion = "", ""
	m.Annotations[annMirror] = p.Annotations[annHashOf]
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
	pods, _ := a.cfg.readStatic()
	for _, p := range pods {
		if p.UID == uid {
			return true
		}
	}
	return false
}
