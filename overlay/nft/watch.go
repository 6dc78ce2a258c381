package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// watchLimit is how many bytes may wait to be read: the kernel tells us of our own large transactions too.
const watchLimit = 16 << 20

// WatchConfig says which changes are of interest.
type WatchConfig struct {
	NS    int    // file descriptor of the network namespace; 0 is the namespace of the calling thread
	Table string // the name of the tables, of both families
	// Own tells which netlink ports are ours (Conn.Port). It is called from the goroutine of Watch.
	Own func(port uint32) bool
	// Changed is called from the goroutine of Watch.
	Changed func(Foreign)
}

// Foreign is a change of one of our tables by another program.
type Foreign struct {
	Family Family
	// Program made the change, as "name (process number)"; "" if that is not known.
	Program string
	// Missed: messages were lost, so there may have been a change of any table, and nothing else is known.
	Missed bool
}

// Watch calls Changed for each transaction in which another program changed a table of the name, until ctx ends. It
// returns the context's error then. Changes of other tables are ignored.
func Watch(ctx context.Context, cfg WatchConfig) error {
	file, err := subscribe(cfg.NS)
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
	w := watcher{cfg: cfg, touched: map[Family]bool{}}
	buffer := make([]byte, 64<<10)
	for {
		n, err := file.Read(buffer)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, unix.ENOBUFS): // some messages were lost
			cfg.Changed(Foreign{Missed: true})
		case err != nil:
			return fmt.Errorf("watch nftables: %w", err)
		default:
			w.receive(buffer[:n])
		}
	}
}

func subscribe(ns int) (*os.File, error) {
	fd, err := openSocket(ns, unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, err
	}
	growReceiveBuffer(fd, watchLimit)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)}); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// watcher follows transactions: each is a number of messages, and one more about the new generation of the ruleset.
type watcher struct {
	cfg     WatchConfig
	touched map[Family]bool // whose table another program changed in this transaction
}

// receive takes in messages of the kernel.
func (w *watcher) receive(data []byte) {
	_ = messages(data, func(h header, body []byte) error {
		if h.kind>>8 != unix.NFNL_SUBSYS_NFTABLES || len(body) < genLen {
			return nil
		}
		family, attrs := Family(body[0]), body[genLen:]
		switch {
		case h.kind&0xff == unix.NFT_MSG_NEWGEN:
			w.endTransaction(attrs)
		case slices.Contains(Families, family) && !w.cfg.Own(h.port) && findText(attrs, tableAttribute) == w.cfg.Table:
			w.touched[family] = true
		}
		return nil
	})
}

// endTransaction calls Changed for each table that was touched.
func (w *watcher) endTransaction(attrs []byte) {
	const generationPID, generationName = 2, 3 // NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
	for _, family := range Families {
		if w.touched[family] {
			w.cfg.Changed(Foreign{Family: family, Program: program(find(attrs, generationName), find(attrs, generationPID))})
		}
	}
	clear(w.touched)
}

// program returns the program that made a transaction, as "name (process number)"; "" if the kernel does not say.
func program(name, pid []byte) string {
	if len(name) == 0 || len(pid) != 4 {
		return ""
	}
	return fmt.Sprintf("%s (%d)", cString(name), binary.BigEndian.Uint32(pid))
}
