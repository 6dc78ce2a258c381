// Package deviceplugin gives the devices of device plug-ins to containers, by upstream's API v1beta1.
//
//	plug-in ──plugins_registry──▶ node/pluginwatcher ──▶ Manager, or
//	plug-in ──Register──▶ Dir/kubelet.sock            which resource, and which socket of Dir
//	plug-in ◀──ListAndWatch, Allocate, …── Manager    devices and their health; what a container needs to use one
//	                                       ├─▶ the Node's capacity and allocatable, at once
//	                                       ├─▶ node/podworker: devices, mounts, variables of a container
//	                                       └─▶ Dir/balsa_allocations.json: which container has which device
//
// Allocate gives devices to one container. The devices are in the file before the container starts, so a restart of the agent
// gives none of them to another pod. One pod at a time has its turn at a resource, and no lock is held over a call to a
// plug-in: a plug-in that hangs holds back only the pods that want its resource, and each call ends at its deadline.
//
// When a plug-in goes, its resource has no allocatable devices, and no capacity after five minutes. Its containers go on
// running, and start again with what the plug-in said before. A plug-in registers again when kubelet.sock is made anew, which
// each start of the agent does; the sockets of plug-ins are removed then, as upstream does.
//
// A plug-in is root on this machine, so it is trusted with what it hands to containers. It is bounded in what it makes the
// agent keep: names of resources, devices, and the size of an answer.
//
// Locks: turns come first, then disk, then mu; mu is held over no call and no I/O.
package deviceplugin
