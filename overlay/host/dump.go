package host

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// dump repeats a listing when the kernel says that something changed meanwhile. The number of tries is bounded, because on some
// hosts pods come and go all the time.
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

// mainTables returns the routes of both families.
func (h *Host) mainTables() (routes []netlink.Route, err error) {
	for _, family := range families {
		list, err := dump(func() ([]netlink.Route, error) { return h.link.RouteList(nil, family) })
		if err != nil && family == netlink.FAMILY_V4 { // a kernel may have no IPv6
			return nil, err
		}
		routes = append(routes, list...)
	}
	return routes, nil
}

func (h *Host) neighbours(link, family int) ([]netlink.Neigh, error) {
	return dump(func() ([]netlink.Neigh, error) { return h.link.NeighList(link, family) })
}
