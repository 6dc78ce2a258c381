// Package cpumanager gives containers CPUs of their own, as upstream's CPU manager does.
//
// With the policy static, each container of a Guaranteed pod that requests whole CPUs gets so many, and no other container
// runs on them. All others share the pool that is left, which always has the reserved CPUs, or never with the option
// strict-cpu-reservation. An ordinary init container leaves its CPUs to the containers after it.
//
// The assignments are a file, in upstream's form without its checksum, written before a container starts. The pool is not
// kept: it is what no container has. A start with another policy, or on a machine with other CPUs, is refused while the file
// has assignments that this one cannot keep.
//
// take.go chooses CPUs and hints.go says from which NUMA nodes they could come; both are functions of values. The package
// writes no cgroup: the agent has the runtime do that.
package cpumanager
