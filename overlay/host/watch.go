package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

// Watch calls changed whenever a link, an address, a route, a setting that the kernel announces, or a neighbour on a link that
// concerns the caller changed in the namespace, until ctx ends. It calls changed from one goroutine at a time, and may call it
// without need. concerns gets a link's index and must be safe to call from another goroutine.
func Watch(ctx context.Context, ns Namespace, concerns func(link int) bool, changed func()) error {
	route, err := subscribe(ns, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return err
	}
	closed := make(chan struct{})
	watching, stop := context.WithCancel(ctx)
	defer func() {
		stop()
		<-closed
	}()
	go fault.Contained("overlay/host", func() {
		defer close(closed)
		<-watching.Done()
		route.Close()
	})()
	for {
		messages, _, err := route.Receive()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: some messages were lost, so something changed
			return fmt.Errorf("watch netlink: %w", err)
		}
		if err != nil || !onlyNeighbours(messages, concerns) {
			changed()
		}
	}
}

func subscribe(ns Namespace, protocol int, groups ...uint) (s *nl.NetlinkSocket, err error) {
	err = ns.Do(func() error {
		s, err = nl.Subscribe(protocol, groups...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("watch netlink: %w", err)
	}
	return s, nil
}

// onlyNeighbours tells whether all messages are about neighbours on links that do not concern the caller. Most are, because
// neighbour entries come and go by themselves.
func onlyNeighbours(messages []syscall.NetlinkMessage, concerns func(link int) bool) bool {
	const familyAndPadding, index = 4, 4 // of struct ndmsg
	for _, m := range messages {
		if m.Header.Type != unix.RTM_NEWNEIGH && m.Header.Type != unix.RTM_DELNEIGH {
			return false
		}
		if len(m.Data) < familyAndPadding+index || concerns(int(int32(binary.NativeEndian.Uint32(m.Data[familyAndPadding:])))) {
			return false
		}
	}
	return true
}
