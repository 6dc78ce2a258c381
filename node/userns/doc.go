// Package userns gives every pod with hostUsers: false a range of user and group IDs of this machine that no other pod has,
// so that root in the pod has no rights on the host and in other pods.
//
// A range is written to a file of the pod's directory before it is used, in the form the upstream kubelet uses, and is read
// from there after a restart of the agent. It is free again when no process of the pod runs any more.
package userns
