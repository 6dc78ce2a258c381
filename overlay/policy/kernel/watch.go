package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/host"
)

// watchBuffer is room for what a large transaction of another program is told by.
const watchBuffer = 1 << 20

// Event is what may have happened to the tables.
type Event uint8

// Events.
const (
	Touched Event = iota // somebody else changed them
	Missed               // something happened that could not be followed
)

// Watch calls happened, from one goroutine, when somebody else changes the tables, until ctx ends.
func (t *Tables) Watch(ctx context.Context, ns host.Namespace, happened func(Event)) error {
	var s *nl.NetlinkSocket
	err := ns.Do(func() (err error) {
		s, err = nl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		return err
	})
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		s.Close()
	})
	defer func() {
		if stopped() {
			s.Close()
			return
		}
		<-ended
	}()
	if err := s.SetReceiveBufferSize(watchBuffer, true); err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	for {
		messages, _, err := s.Receive()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS):
			happened(Missed)
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		case t.foreign(messages):
			happened(Touched)
		}
	}
}

// foreign tells whether one of the messages is about a table of ours, and another's doing.
func (t *Tables) foreign(messages []syscall.NetlinkMessage) bool {
	for _, m := range messages {
		if m.Header.Type>>8 == unix.NFNL_SUBSYS_NFTABLES && m.Header.Type&0xff != unix.NFT_MSG_NEWGEN &&
			m.Header.Pid != t.port.Load() && tableOf(m.Data) == Name {
			return true
		}
	}
	return false
}

// tableOf is the table that a message is about: attribute 1 behind the netfilter header, in messages of every kind.
func tableOf(data []byte) string {
	const netfilterHeader, header, table = 4, 4, 1
	if len(data) < netfilterHeader {
		return ""
	}
	for data = data[netfilterHeader:]; len(data) >= header; {
		size := int(binary.NativeEndian.Uint16(data))
		if size < header || size > len(data) {
			return ""
		}
		if binary.NativeEndian.Uint16(data[2:])&0x3fff == table {
			return strings.TrimRight(string(data[header:size]), "\x00")
		}
		data = data[min((size+3)&^3, len(data)):]
	}
	return ""
}
