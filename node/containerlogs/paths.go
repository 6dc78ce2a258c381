package containerlogs

import (
	"os"
	"path/filepath"
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// PodDir returns the directory below logDir to which the runtime writes the logs of a pod.
func PodDir(logDir string, pod *v1.Pod) string {
	return filepath.Join(logDir, "pods", pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// FileName returns the log of one run of a container, relative to the pod's directory.
func FileName(container string, attempt int) string {
	return filepath.Join(container, strconv.Itoa(attempt)+".log")
}

// Run is one run of a container.
type Run struct {
	Pod       *v1.Pod
	Container string
	ID        string // of the container in the runtime
	Attempt   int    // restart count
}

// Link makes the link in logDir/containers by which log collectors find the log of a run.
func Link(logDir string, r Run) error {
	link := filepath.Join(logDir, "containers", r.Pod.Name+"_"+r.Pod.Namespace+"_"+r.Container+"-"+r.ID+".log")
	target := filepath.Join(PodDir(logDir, r.Pod), FileName(r.Container, r.Attempt))
	if err := os.Symlink(target, link); err != nil && !os.IsExist(err) {
		return err
	}
	return nil
}

// RemoveLinks removes the links to all logs of a pod. Another pod's of the same name stay.
func RemoveLinks(logDir string, pod *v1.Pod) {
	links, _ := filepath.Glob(filepath.Join(logDir, "containers", pod.Name+"_"+pod.Namespace+"_*"))
	for _, l := range links {
		if t, err := os.Readlink(l); err == nil && filepath.Dir(filepath.Dir(t)) == PodDir(logDir, pod) {
			_ = os.Remove(l)
		}
	}
}
