package host

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// deleteStaleNeighbours deletes the neighbour entries of pods that have left the bridge. Their IP addresses go to other pods, and
// the kernel would send to the old link-layer address for eight seconds before it asks again: a new pod's announcement comes
// while its port of the bridge does not forward yet.
//
// The bridge forgets a pod that is silent for long; the kernel then asks for its address again, which costs one round trip.
func (h *Host) deleteStaleNeighbours(bridge netlink.Link) error {
	learned, err := h.neighbours(0, unix.AF_BRIDGE)
	if err != nil {
		return fmt.Errorf("forwarding table of %s: %w", h.cfg.Bridge, err)
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
			return fmt.Errorf("delete neighbour %s: %w", n.IP, err)
		}
	}
	return nil
}
