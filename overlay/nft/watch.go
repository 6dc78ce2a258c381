package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// watchLimit is how much may wait to be read: our own large transactions are told to us too.
const watchLimit = 16 << 20

// Foreign is a change of one of our tables by somebody else.
type Foreign struct {
	V4 bool
	// Program is who made it, as "name (process number)"; "" if that is not known.
	Program string
}

// Watch calls changed when somebody changed a table of our name in the namespace behind ns, until ctx ends. own tells
// which netlink ports are ours (Table.Port); it must be safe to call from another goroutine. What others do to other
// tables concerns nobody here.
func Watch(ctx context.Context, ns int, own func(port uint32) bool, changed func(Foreign)) error {
	file, err := subscribe(ns)
	if err != nil {
		return fmt.Errorf("watch nftables: %w", err)
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		file.Close()
		close(closed)
	})
	defer func() {
		if stop() {
			file.Close()
			return
		}
		<-closed
	}()
	w := watcher{own: own, changed: changed}
	buffer := make([]byte, 64<<10)
	for {
		n, err := file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS): // some messages were lost
			changed(Foreign{V4: true})
			changed(Foreign{V4: false})
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		default:
			w.judge(buffer[:n])
		}
	}
}

func subscribe(ns int) (*os.File, error) {
	var fd int
	err := inside(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, err
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, watchLimit) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, watchLimit)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// watcher follows transactions: each is a number of messages, and one more about the new generation of the ruleset.
type watcher struct {
	own     func(port uint32) bool
	changed func(Foreign)
	touched [2]bool // our tables, by somebody else, in this transaction: IPv6, IPv4
}

func (w *watcher) judge(data []byte) {
	const generationPID, generationName = 2, 3 // NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
	_ = messages(data, func(h header, body []byte) error {
		if h.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < genLen {
			return nil
		}
		family, attrs := nftables.TableFamily(body[0]), body[genLen:]
		if h.kind&0xff != unix.NFT_MSG_NEWGEN {
			// The first attribute of every other message is the table.
			if (family == nftables.TableFamilyIPv4 || family == nftables.TableFamilyIPv6) && !w.own(h.port) && findText(attrs, 1) == Name {
				w.touched[b2u(family == nftables.TableFamilyIPv4)] = true
			}
			return nil
		}
		for i, touched := range w.touched {
			if touched {
				w.changed(Foreign{V4: i == 1, Program: program(find(attrs, generationName), find(attrs, generationPID))})
			}
		}
		w.touched = [2]bool{}
		return nil
	})
}

func program(name, pid []byte) string {
	if len(name) == 0 || len(pid) != 4 {
		return ""
	}
	return fmt.Sprintf("%s (%d)", cString(name), binary.BigEndian.Uint32(pid))
}
