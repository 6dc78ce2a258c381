package node

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// volumesInUse returns the volumes that may not be detached from this node. When they cannot be read, the Node's status
// keeps what it says.
func (a *Agent) volumesInUse() []v1.UniqueVolumeName {
	used, err := a.csi.InUse()
	if err != nil {
		a.log.Warn("cannot read which volumes are in use; the Node's status keeps what it says", "err", err)
		return a.Node().Status.VolumesInUse
	}
	return used
}

// reportsInUse reports whether the Node's status says that a volume is in use here. When it does not, it is written soon.
func (a *Agent) reportsInUse(name v1.UniqueVolumeName) bool {
	if slices.Contains(a.Node().Status.VolumesInUse, name) {
		return true
	}
	a.nudge()
	return false
}
