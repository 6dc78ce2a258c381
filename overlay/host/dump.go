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

// families are those of IP.
var families = []int{netlink.FAMILY_V4, netlink.FAMILY_V6}

// mainTables are the routes of both families.
func (h *Host) mainTables() (routes []netlink.Route, err error) {
	for _, family := range families {
		list, err := dump(func() ([]netlink.Route, error) { return h.link.RouteList(nil, family) })
		if err != nil && family == netlink.FAMILY_V4 { // a kernel may be without IPv6
			return nil, err
		}
		routes = append(routes, list...)
	}
	return routes, nil
}

func (h *Host) neighbours(link, family int) ([]netlink.Neigh, error) {
	return dump(func() ([]netlink.Neigh, error) { return h.link.NeighList(link, family) })
}
