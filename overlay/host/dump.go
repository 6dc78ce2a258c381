package host

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dump lists something again when the kernel says that it changed during the listing; a host on which pods come and go all
// the time is not looked at in vain for long.
func dump[T any](list func() ([]T, error)) (out []T, err error) {
	for range 10 {
		if out, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return out, err
}

func (h *Host) mainTable() ([]netlink.Route, error) {
	return dump(func() ([]netlink.Route, error) { return h.link.RouteList(nil, netlink.FAMILY_V4) })
}

func (h *Host) neighbours(link, family int) ([]netlink.Neigh, error) {
	return dump(func() ([]netlink.Neigh, error) { return h.link.NeighList(link, family) })
}
