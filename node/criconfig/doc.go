// Package criconfig translates between pods and the messages of the container runtime interface (CRI).
//
// Config.Sandbox and Config.Container turn a pod into what the runtime is asked to run: names, DNS, host name, security,
// resources, mounts. InstanceOf and SandboxOf read the runtime's answers back into what package podloop observes. What
// the agent must know again after a restart travels in labels and annotations, named as the upstream kubelet names them.
//
// The package calls no runtime. It writes the few files that are mounted into a container (hosts, termination message)
// and reads the host's resolver configuration and the kernel's sizes of huge pages.
package criconfig
