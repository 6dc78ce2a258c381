package staticpod

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"

	"github.com/fsnotify/fsnotify"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1defaults "k8s.io/kubernetes/pkg/apis/core/v1"
)

// Annotations of static pods and of their mirrors in the API, named as the upstream kubelet names them.
const (
	AnnotationMirror = "kubernetes.io/config.mirror" // of a mirror: the hash of the manifest it shows
	AnnotationHash   = "kubernetes.io/config.hash"   // of a static pod: the hash of its manifest
	annotationSource = "kubernetes.io/config.source"
)

// Is reports whether the pod came from a manifest on the node.
func Is(p *v1.Pod) bool { return p.Annotations[annotationSource] == "file" }

// Read reads every manifest (.yaml, .yml, .json) in dir for the node of this name. The error names the files that cannot be
// read; the pods of the others are returned all the same.
func Read(dir, nodeName string) ([]*v1.Pod, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
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
		p, err := readManifest(f, nodeName)
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

// readManifest reads one manifest. The UID of the pod follows from its content, so a changed
// manifest is another pod.
func readManifest(file, nodeName string) (*v1.Pod, error) {
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
	sum := sha256.Sum256(append(b, nodeName+file...))
	hash := hex.EncodeToString(sum[:16])
	if pod.Namespace == "" {
		pod.Namespace = metav1.NamespaceDefault
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Name += "-" + nodeName
	pod.UID, pod.Spec.NodeName = types.UID(hash), nodeName
	pod.Annotations[AnnotationHash], pod.Annotations[annotationSource] = hash, "file"
	pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute})
	pod.Status = v1.PodStatus{Phase: v1.PodPending}
	return pod, nil
}

// Watch returns a channel of changes in a directory and a function that ends the watch. The channel is nil where the system
// cannot watch.
func Watch(dir string) (<-chan fsnotify.Event, func()) {
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
