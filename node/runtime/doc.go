// Package runtime owns the container runtime that ships inside the binary: it
// lays out the helper programs, runs containerd as a child that outlives this
// process, and imports the images that Balsa carries.
//
//	balsa server ──start/adopt──▶ balsa containerd (its own session)
//	     │                              │ one per pod
//	     └──────── CRI socket ─────────▶├── containerd-shim-runc-v2 ──▶ runc
//	                                    └── bridge, host-local, loopback (CNI)
//
// One goroutine, in Run, watches the child through a pidfd and starts it again
// when it dies. Leaving Run leaves the child running: containers, and the way
// to them, survive a restart of Balsa. Only Teardown ends them.
package runtime
