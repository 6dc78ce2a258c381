// Package realtest owns the tests of the node agent against a real container
// runtime: containerd, runc and CNI as the binary carries them, in a network
// namespace of their own. It needs root and has no code of its own.
package realtest
