// Package cgroup owns the control groups of pods: the parent of all, one below
// it for each quality of service, one for each pod.
//
//	/kubepods                       what pods may use together
//	├── pod<uid>                    guaranteed
//	├── burstable/pod<uid>
//	└── besteffort/pod<uid>
//	     └── <container>            made by the runtime (cgroupfs driver)
//
// Version 1 (a hierarchy for each controller) and version 2 (one hierarchy)
// are told apart by what is mounted. The package writes files and nothing
// else; it starts no goroutine and its methods may be called at the same time
// for different pods.
package cgroup
