package host

import (
	"context"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Watch calls changed whenever a link, an address, a route, or the nftables of another process changed in the namespace,
// until ctx ends. It calls from one goroutine at a time, and may call without need.
func Watch(ctx context.Context, ns Namespace, changed func(what Change)) error {
	route, err := subscribe(ns, unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return err
	}
	filter, err := subscribe(ns, unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
	if err != nil {
		route.Close()
		return err
	}
	events := make(chan Change)
	done := make(chan struct{})
	go func() { receive(ctx, route, Links, events); done <- struct{}{} }()
	go func() { receive(ctx, filter, Rules, events); done <- struct{}{} }()
	go func() {
		<-ctx.Done()
		route.Close()
		filter.Close()
		done <- struct{}{}
	}()
	for left := 3; left > 0; {
		select {
		case c := <-events:
			changed(c)
		case <-done:
			left--
		}
	}
	return ctx.Err()
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

func receive(ctx context.Context, s *nl.NetlinkSocket, what Change, events chan<- Change) {
	for {
		messages, _, err := s.Receive()
		if ctx.Err() != nil {
			return
		}
		if err != nil && err != unix.ENOBUFS { // ENOBUFS: some were lost, so something changed
			return
		}
		if err == nil && what == Rules && !foreign(messages) {
			continue
		}
		select {
		case events <- what:
		case <-ctx.Done():
			return
		}
	}
}
