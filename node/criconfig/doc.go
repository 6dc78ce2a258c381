// Package criconfig translates between pods and the messages of the container runtime interface (CRI).
//
// Config.Sandbox and Config.Container turn a pod into requests to the runtime: names, DNS, host name, security, resources,
// mounts. InstanceOf and SandboxOf read the runtime's answers back into what package podloop observes. State that the agent
// needs after a restart is stored in labels and annotations with the upstream kubelet's names.
//
// The package calls no runtime. It writes the few files that are mounted into a container (hosts, termination message)
// and reads the host's resolver configuration and the kernel's sizes of huge pages.
package criconfig
