// Command vm tests install.sh on whole machines, with a kernel and a systemd, as people use it: three servers that join
// by the commands which the first one prints, an upgrade in place, a clock that jumps, and an uninstallation that
// leaves nothing.
//
//	this program ──unix socket──▶ virtio port ──▶ pilot (a shell in the machine)
//	      │
//	      └─▶ qemu ×N, joined by a multicast group on 127.0.0.1
//
// The machines run Debian's cloud kernel and a minimal Debian, which mmdebstrap makes once and which is kept in -dir.
// They are emulated (TCG) unless -accel says otherwise, so that this runs without hardware support; allow some minutes.
//
// It needs qemu-system-x86, qemu-utils, mmdebstrap and e2fsprogs, and root to make the image. Everything of a run is in
// a temporary directory below -dir. The machines end with this program.
package main
