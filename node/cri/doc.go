// Package cri calls the container runtime through the container runtime interface (CRI): it connects, lists what runs,
// follows events and runs commands of probes. It knows pods as the runtime has them and keeps no state; package criconfig
// writes and reads the messages, package podworker decides when to call.
package cri
