package podworker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/balsahq/balsa/node/podloop"
)

// recordFile in the pod's directory holds what the runtime cannot say after a restart of the agent.
const recordFile = "record.json"

// podRecord holds what is allocated to the pod, and how its cgroups differ from that: a process that ends in the middle of a
// resize leaves the next one what it needs, and a resize that was never allocated is not taken for one that was. It holds the
// IDs of the containers that ran before all were restarted.
type podRecord struct {
	Generation int64             `json:"generation"`
	Allocated  podloop.Resources `json:"allocated"`
	Actual     podloop.Actual    `json:"actual"`
	Obsolete   []string          `json:"obsolete,omitempty"`
}

func (h *Host) recordPath(pod *v1.Pod) string {
	return filepath.Join(h.Config.PodDir(pod.UID), recordFile)
}

// readRecord returns what a former process had allocated to the pod; false when there is nothing to read.
func (h *Host) readRecord(pod *v1.Pod) (podRecord, bool) {
	var c podRecord
	b, err := os.ReadFile(h.recordPath(pod))
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		h.Logger.Warn("the record of a pod cannot be read; the resources of its spec count", "pod", podloop.PodName(pod), "err", err)
	}
	return c, err == nil
}

// writeRecord replaces the record in one step. It does not wait for the disk: after a crash of the machine no container of
// the pod is left.
func (h *Host) writeRecord(pod *v1.Pod, c podRecord) error {
	b, err := json.Marshal(c)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	path := h.recordPath(pod)
	if err := os.WriteFile(path+".tmp", b, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// saveRecord writes the record. The pod's directory exists from when its volumes are there, and no container before.
func (w *Worker) saveRecord() {
	if !w.observed.Volumes {
		return
	}
	r := podRecord{Generation: w.grant.Generation, Allocated: w.grant.Allocated, Actual: w.observed.Actual}
	for _, name := range w.observed.ContainerNames() {
		for _, in := range w.observed.Containers[name] {
			if in.Obsolete {
				r.Obsolete = append(r.Obsolete, in.ID)
			}
		}
	}
	if err := w.host.writeRecord(w.pod, r); err != nil {
		w.host.Logger.Warn("the record of a pod cannot be written; a new process would take the resources of its spec", "pod", podloop.PodName(w.pod), "err", err)
	}
}

// resume takes over what a former process was about: a resize that is carried out, or the restart of all containers.
func (w *Worker) resume() {
	r, ok := w.host.readRecord(w.pod)
	if !ok {
		return
	}
	for _, id := range r.Obsolete {
		if in := w.observed.ByID(id); in != nil {
			in.Obsolete, in.Replaced = true, true
		}
	}
	if r.Actual.AsAllocated() {
		return
	}
	w.observed.Actual = r.Actual
	w.observed.Actual.Keep(w.instance)
	w.observed.Resizing = &podloop.Resizing{Generation: r.Generation}
}
