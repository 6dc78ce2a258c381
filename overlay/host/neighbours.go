package host

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deleteStaleNeighbours deletes the link-layer addresses of pods that have left the bridge. Their IP addresses go to other pods, and
// the kernel would send to the dead address for eight seconds before it asks anew: the announcement of a new pod comes
// while its port of the bridge is still shut.
//
// A pod that has been silent for so long that the bridge forgot it is asked for anew, which costs one round trip.
func (h *Host) deleteStaleNeighbours(bridge netlink.Link) error {
	learned, err := h.neighbours(0, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("stations of %s: %w", h.cfg.Bridge, err)
	}
	there := make(map[string]struct{}, len(learned))
	for i := range learned {
		if learned[i].MasterIndex == bridge.Attrs().Index {
			there[learned[i].HardwareAddr.String()] = struct{}{}
		}
	}
	known, err := h.neighbours(bridge.Attrs().Index, unix.AF_UNSPEC)
	if err != nil {
		return fmt.Errorf("neighbours on %s: %w", h.cfg.Bridge, err)
	}
	for i := range known {
		n := &known[i]
		_, ok := there[n.HardwareAddr.String()]
		if ok || n.LinkIndex != bridge.Attrs().Index || len(n.HardwareAddr) == 0 || n.State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			continue
		}
		if err := h.link.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("forget neighbour %s: %w", n.IP, err)
		}
	}
	return nil
}
