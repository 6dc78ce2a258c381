// Command vm owns whole machines, with a kernel and a systemd of their own, in
// which install.sh is run as people run it: three servers, joined by commands
// that the first one prints; an upgrade in place; a clock that jumps; an
// uninstallation that leaves nothing.
//
//	this program ──unix socket──▶ virtio port ──▶ pilot (a shell in the machine)
//	      │
//	      └─▶ qemu ×N, joined by a multicast group on 127.0.0.1
//
// The machines run Debian's cloud kernel and a minimal Debian made by mmdebstrap
// once and kept in -dir. They are emulated (TCG) unless -accel says otherwise, so
// that this runs where there is no hardware help: allow minutes.
//
// It needs qemu-system-x86, qemu-utils, mmdebstrap and e2fsprogs, and root to
// make the image. Everything of a run lies in a temporary directory below -dir;
// the machines end with this program.
package main
