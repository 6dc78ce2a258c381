package host

import (
	"errors"
	"fmt"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/routes"
)

// OpenTUN opens the TUN link of the name in the namespace of the calling thread, and makes it if there is none. Each read and
// write is one IP packet; reads do not block the thread. The link stays when the file is closed. Only one process at a time can
// open it.
func OpenTUN(name string) (*os.File, error) {
	const device = "/dev/net/tun"
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; the kernel's module tun is needed", device, err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// ensureRelay returns the link from which a process reads packets for other nodes; it makes it and sets it up if needed.
func (h *Host) ensureRelay(want *routes.Tunnel) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = h.cfg.Relay
	if _, err := h.link.LinkByName(attrs.Name); errors.As(err, &netlink.LinkNotFoundError{}) {
		f, err := OpenTUN(attrs.Name)
		if err != nil {
			return nil, err
		}
		f.Close()
		h.cfg.Logger.Info("link made", "name", attrs.Name, "kind", "tun")
	}
	link, err := h.ensureLink(&netlink.Tuntap{LinkAttrs: attrs, Mode: netlink.TUNTAP_MODE_TUN})
	if err != nil {
		return nil, err
	}
	if link.Attrs().MTU != want.MTU {
		if err := h.link.LinkSetMTU(link, want.MTU); err != nil {
			return nil, fmt.Errorf("mtu of %s: %w", attrs.Name, err)
		}
	}
	return link, nil
}
