package host

import (
	"context"
	"errors"
	"fmt"

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
	watching, stop := context.WithCancel(ctx)
	defer stop()
	events := make(chan Change)
	ended := make(chan error)
	go func() { ended <- receive(watching, route, Links, events) }()
	go func() { ended <- receive(watching, filter, Rules, events) }()
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

func receive(ctx context.Context, s *nl.NetlinkSocket, what Change, events chan<- Change) error {
	for {
		messages, _, err := s.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) { // ENOBUFS: some were lost, so something changed
			return fmt.Errorf("watch netlink: %w", err)
		}
		if err == nil && what == Rules && !foreign(messages) {
			continue
		}
		select {
		case events <- what:
		case <-ctx.Done():
			return nil
		}
	}
}
