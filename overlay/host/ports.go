package host

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// applyPorts records the links on the bridge, attaches again the links of a former bridge of that name, isolates all of
// them, and deletes the neighbour entries of links that are gone.
func (h *Host) applyPorts(bridge netlink.Link) error {
	links, err := dump(h.link.LinkList)
	if err != nil {
		return fmt.Errorf("ports of %s: %w", h.cfg.Bridge, err)
	}
	apart, err := isolatedPorts()
	if err != nil {
		return fmt.Errorf("ports of %s: %w", h.cfg.Bridge, err)
	}
	seen := make(map[int]struct{})
	for _, l := range links {
		index := l.Attrs().Index
		_, ours := h.ports[index]
		switch {
		case l.Attrs().MasterIndex == bridge.Attrs().Index:
			seen[index] = struct{}{}
			if !apart[index] && l.Type() == "veth" {
				h.isolatePort(l)
			}
		case ours && l.Attrs().MasterIndex == 0:
			if err := errors.Join(h.link.LinkSetMaster(l, bridge), h.link.LinkSetUp(l)); err != nil {
				h.cfg.Logger.Warn("cannot attach a pod's link to the bridge again; the pod has no network", "link", l.Attrs().Name, "err", err)
				continue
			}
			h.isolatePort(l)
			seen[index] = struct{}{}
		}
	}
	gone := h.ports == nil // first Apply of this process: links may have gone while no process ran
	for index := range h.ports {
		if _, ok := seen[index]; !ok {
			gone = true
		}
	}
	if gone {
		if err := h.deleteStaleNeighbours(bridge); err != nil {
			return err
		}
	}
	h.ports = seen
	return nil
}

// isolatePort isolates a port from the other ports, and lets the bridge send packets back through the port they came from. A port
// that is gone meanwhile is no error.
func (h *Host) isolatePort(port netlink.Link) {
	err := errors.Join(h.link.LinkSetHairpin(port, true), h.link.LinkSetIsolated(port, true))
	if err != nil && !errors.Is(err, unix.ENODEV) {
		h.cfg.Logger.Warn("cannot isolate a pod's port of the bridge; its packets to pods of this node pass no rules", "link", port.Attrs().Name, "err", err)
	}
}

// isolatedPorts returns for each port of any bridge whether it is isolated already and needs no isolatePort. The calling
// thread must be in the namespace.
func isolatedPorts() (map[int]bool, error) {
	messages, err := dump(func() ([][]byte, error) {
		request := nl.NewNetlinkRequest(unix.RTM_GETLINK, unix.NLM_F_DUMP)
		request.AddData(nl.NewIfInfomsg(unix.AF_BRIDGE))
		return request.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	})
	if err != nil {
		return nil, err
	}
	apart := make(map[int]bool, len(messages))
	for _, m := range messages {
		info := nl.DeserializeIfInfomsg(m)
		attributes, err := nl.ParseRouteAttr(m[info.Len():])
		if err != nil {
			return nil, err
		}
		for _, a := range attributes {
			if a.Attr.Type != unix.IFLA_PROTINFO|unix.NLA_F_NESTED {
				continue
			}
			settings, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return nil, err
			}
			on := 0
			for _, s := range settings {
				if (s.Attr.Type == nl.IFLA_BRPORT_MODE || s.Attr.Type == nl.IFLA_BRPORT_ISOLATED) && len(s.Value) == 1 && s.Value[0] != 0 {
					on++
				}
			}
			apart[int(info.Index)] = on == 2
		}
	}
	return apart, nil
}
