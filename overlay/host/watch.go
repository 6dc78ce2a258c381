package host

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch calls changed whenever a link, an address, a route, a setting the kernel tells of, a neighbour on a link that
// concerns the caller, or the nftables of another process changed in the namespace, until ctx ends. It calls changed from one goroutine at a time,
// and may call without need; concerns, given a link's index, must be safe to call from another.
func Watch(ctx context.Context, ns Namespace, concerns func(link int) bool, changed func(what Change)) error {
	route, err := subscribe(ns, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
	if err != nil {
		return err
	}
	filter, err := subscribe(ns, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		route.Close()
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events := make(chan Change)
	ended := make(chan error)
	go func() {
		ended <- receive(watching, route, events, func(m []syscall.NetlinkMessage) (Change, bool) {
			return Links, !onlyNeighbours(m, concerns)
		})
	}()
	go func() {
		ended <- receive(watching, filter, events, func(m []syscall.NetlinkMessage) (Change, bool) { return Rules, foreign(m) })
	}()
	go func() {
		<-watching.Done()
		route.Close()
		filter.Close()
		ended <- nil
	}()
	var errs []error
	for left := 3; left > 0; {
		select {
		case c := <-events:
			changed(c)
		case err := <-ended:
			errs = append(errs, err)
			stop()
			left--
		}
	}
	return errors.Join(append(errs, ctx.Err())...)
}

// Change is what may have changed.
type Change uint8

// Kinds of change.
const (
	Links Change = iota
	Rules
)

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

// receive sends what messages amount to, if to anything.
func receive(ctx context.Context, s *nl.NetlinkSocket, events chan<- Change, judge func([]syscall.NetlinkMessage) (Change, bool)) error {
	for {
		messages, _, err := s.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: some were lost, so something changed
			return fmt.Errorf("watch netlink: %w", err)
		}
		what, matters := judge(messages)
		if err == nil && !matters {
			continue
		}
		select {
		case events <- what:
		case <-ctx.Done():
			return nil
		}
	}
}

// onlyNeighbours tells whether the messages are about nothing but neighbours on links that concern nobody here: most are,
// as neighbours come and go by themselves.
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
