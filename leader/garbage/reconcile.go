package garbage

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// standing is the known state of one owner.
type standing uint8

const (
	solid    standing = iota // exists, and is not waiting for its dependents to go
	dangling                 // gone, or never was
	waiting                  // being deleted in the foreground
	unclear                  // could not be found out: treated as there, and asked about again
)

// action is the action on an object; at most one of its fields is set.
type action struct {
	drop    map[types.UID]bool // remove these owner references
	unblock bool               // before deleting, let no owner wait for this object
	delete  metav1.DeletionPropagation
}

// decide says what becomes of an object, given how each of its owners stands. The object exists and is not being deleted,
// or waits for its own dependents.
func decide(v view, owners []standing) action {
	var solids, lost, waits int
	drop := map[types.UID]bool{}
	for i, s := range owners {
		switch s {
		case solid, unclear:
			solids++
		case dangling:
			lost++
			drop[v.owners[i].UID] = true
		case waiting:
			waits++
			drop[v.owners[i].UID] = true
		}
	}
	switch {
	case len(owners) == 0:
		return action{}
	case solids > 0 && lost+waits == 0:
		return action{}
	case solids > 0:
		return action{drop: drop} // an owner still exists; the owners that are being deleted must not wait for it
	case waits > 0 && len(v.dependents) > 0:
		// Its owner waits for it, so it waits for its own dependents; unless they wait for each other in a circle.
		circle := false
		for i := range v.dependents {
			circle = circle || v.dependents[i].waiting()
		}
		return action{unblock: circle, delete: metav1.DeletePropagationForeground}
	case v.orphan:
		return action{delete: metav1.DeletePropagationOrphan}
	case v.foreground:
		return action{delete: metav1.DeletePropagationForeground}
	}
	return action{delete: metav1.DeletePropagationBackground}
}

// blockers are the dependents a foreground deletion still waits for.
func blockers(v view) []node {
	var out []node
	for _, d := range v.dependents {
		if blockedBy(&d, v.uid) {
			out = append(out, d)
		}
	}
	return out
}
