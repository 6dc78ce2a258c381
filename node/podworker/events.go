package podworker

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/podloop"
)

// containerEventOf records an event about one container of a version of the pod. It may be called from any goroutine.
func (w *Worker) containerEventOf(pod *v1.Pod, name string, kind podloop.ContainerKind, t, reason, text string) {
	path := "spec.containers{" + name + "}"
	switch kind {
	case podloop.KindInit:
		path = "spec.initContainers{" + name + "}"
	case podloop.KindEphemeral:
		path = "spec.ephemeralContainers{" + name + "}"
	}
	w.host.Events.Event(&v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name,
		UID: pod.UID, ResourceVersion: pod.ResourceVersion, FieldPath: path}, t, reason, strings.ToValidUTF8(text, "?"))
}

// SourceFound has volumes set up at once that could not be so far: an object that they show appeared or changed. It may be
// called from any goroutine.
func (w *Worker) SourceFound() {
	w.mailbox.post(func() {
		w.sourcesFound++
		if w.observed.VolumesRetry != nil {
			w.observed.VolumesRetry.NotBefore = time.Now()
		}
	})
}

func (w *Worker) containerEvent(name string, kind podloop.ContainerKind, t, reason, text string) {
	w.containerEventOf(w.pod, name, kind, t, reason, text)
}
