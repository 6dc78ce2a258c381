package main

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed pilot/pilot.sh pilot/pilot.service
var pilotFiles embed.FS

// packages are added to Debian's essential ones. A small cloud image has them too; Balsa brings none of them.
const packages = "systemd,systemd-sysv,udev,kmod,iproute2,procps,linux-image-cloud-amd64,initramfs-tools,dbus"

// smallInitrd makes an initial RAM disk with only the drivers of these machines. An emulated processor takes minutes to
// unpack Debian's default one.
const smallInitrd = `echo MODULES=list >"$1/etc/initramfs-tools/conf.d/small"; printf 'virtio_pci\nvirtio_blk\n' >"$1/etc/initramfs-tools/modules"; chroot "$1" update-initramfs -u`

// image holds the files from which every machine starts.
type image struct{ kernel, initrd, root, payload string }

// makeImage makes Debian once, and the disk with the program and its installer for each run.
func makeImage(ctx context.Context, opts options, work string) (image, error) {
	tree := filepath.Join(opts.dir, "root")
	im := image{
		kernel: filepath.Join(tree, "vmlinuz"), initrd: filepath.Join(tree, "initrd.img"),
		root: filepath.Join(opts.dir, "root.ext4"), payload: filepath.Join(work, "payload.ext4"),
	}
	if _, err := os.Stat(im.kernel); err != nil {
		if err := shell(ctx, "mmdebstrap", "--mode=root", "--variant=minbase", "--include="+packages, "--customize-hook="+smallInitrd, "bookworm", tree); err != nil {
			return im, err
		}
	}
	if _, err := os.Stat(im.root); err != nil {
		if err := addPilot(tree); err != nil {
			return im, err
		}
		if err := shell(ctx, "mke2fs", "-q", "-t", "ext4", "-d", tree, im.root, "8G"); err != nil {
			return im, err
		}
	}
	box := filepath.Join(work, "payload")
	if err := os.MkdirAll(box, 0o755); err != nil {
		return im, err
	}
	for name, from := range map[string]string{"balsa": opts.balsa, "install.sh": opts.installer} {
		if err := shell(ctx, "cp", from, filepath.Join(box, name)); err != nil {
			return im, err
		}
	}
	return im, shell(ctx, "mke2fs", "-q", "-t", "ext4", "-d", box, im.payload, "400M")
}

// addPilot adds the pilot, which executes this program's scripts, and a file that every installed Debian has.
func addPilot(tree string) error {
	const service = "etc/systemd/system/pilot.service"
	for path, from := range map[string]string{"usr/local/sbin/pilot": "pilot/pilot.sh", service: "pilot/pilot.service"} {
		raw, err := pilotFiles.ReadFile(from)
		if err != nil {
			return err
		}
		mode := os.FileMode(0o755)
		if path == service {
			mode = 0o644
		}
		if err := os.WriteFile(filepath.Join(tree, path), raw, mode); err != nil {
			return err
		}
	}
	// Debian's installer writes this file; mmdebstrap does not.
	if err := os.WriteFile(filepath.Join(tree, "etc/hosts"), []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644); err != nil {
		return err
	}
	wants := filepath.Join(tree, "etc/systemd/system/multi-user.target.wants")
	if err := os.MkdirAll(wants, 0o755); err != nil {
		return err
	}
	link := filepath.Join(wants, "pilot.service")
	_ = os.Remove(link)
	return os.Symlink("/"+service, link)
}

// shell runs a program on this machine; the error contains its output.
func shell(ctx context.Context, name string, args ...string) error {
	out, err := exec.CommandContext(ctx, name, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
