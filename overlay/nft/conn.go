package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

const (
	// sendLimit is how large a transaction can be at most, in bytes; the kernel takes the memory only while it reads one.
	sendLimit = 64 << 20
	// partLimit is how large a part of a change is that may be cut, in bytes: some 50,000 backends.
	partLimit = 8 << 20
	// receiveLimit is how much the kernel may have waiting for us: it answers no message but those that fail.
	receiveLimit = 1 << 20
	dumpTries    = 10
	// answerWithin is how many seconds the kernel may take to answer; it answers at once.
	answerWithin = 10
)

// Conn is a netlink connection to the nftables of one network namespace.
type Conn struct {
	// PartLimit is how large a transaction of ApplyInParts may become, in bytes.
	PartLimit int

	fd   int
	port uint32 // names the socket in the kernel's messages
	buf  []byte
}

// Dial connects to the namespace behind the file descriptor ns; 0 is the namespace of the calling thread.
func Dial(ns int) (*Conn, error) {
	c, err := dial(ns)
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return c, nil
}

func dial(ns int) (*Conn, error) {
	fd, err := openSocket(ns, 0)
	if err != nil {
		return nil, err
	}
	c := &Conn{fd: fd, buf: make([]byte, 64<<10)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		c.Close()
		return nil, err
	}
	if name, err := unix.Getsockname(fd); err == nil {
		if nl, ok := name.(*unix.SockaddrNetlink); ok {
			c.port = nl.Pid
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendLimit) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendLimit) // as much as is allowed
	}
	growReceiveBuffer(fd, receiveLimit)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerWithin})
	have, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		c.Close()
		return nil, err
	}
	c.PartLimit = min(partLimit, have/2)
	return c, nil
}

// openSocket returns a netlink socket of netfilter in the namespace behind ns; flags are more of unix.SOCK_….
func openSocket(ns, flags int) (fd int, err error) {
	err = inside(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|flags, unix.NETLINK_NETFILTER)
		return err
	})
	return fd, err
}

// growReceiveBuffer makes room for so many bytes, or for as many as are allowed.
func growReceiveBuffer(fd, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, size)
	}
}

// Close disconnects; the tables stay.
func (c *Conn) Close() { _ = unix.Close(c.fd) }

// Port names this connection in the kernel's messages about changes of the ruleset.
func (c *Conn) Port() uint32 { return c.port }

// inside runs fn in the namespace behind ns; 0 is the namespace of the calling thread.
func inside(ns int, fn func() error) error {
	if ns == 0 {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		origin, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer origin.Close()
		if err := netns.Set(netns.NsHandle(ns)); err != nil {
			done <- fmt.Errorf("enter network namespace: %w", err)
			return
		}
		err = fault.Contain("overlay/nft", fn)
		// A thread that cannot go back stays locked, and ends with this goroutine.
		if netns.Set(origin) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// transact sends a transaction, which the kernel carries out before it returns, whole or not at all.
func (c *Conn) transact(data []byte) (err error) {
	defer noteCommit(len(data), time.Now(), &err)
	if err := unix.Sendto(c.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var first error
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return first
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return errors.Join(first, err)
		}
		err = messages(c.buf[:n], func(h header, body []byte) error { return failure(h, body, data) })
		if first == nil {
			first = err
		}
	}
}

// failure returns the error that a message reports, nil if it reports none; sent are the messages that it may be about.
func failure(h header, body, sent []byte) error {
	if h.kind != unix.NLMSG_ERROR || len(body) < 4 {
		return nil
	}
	code := int32(binary.NativeEndian.Uint32(body))
	if code == 0 {
		return nil
	}
	what := ""
	_ = messages(sent, func(of header, message []byte) error {
		if of.seq == h.seq && of.kind>>8 == unix.NFNL_SUBSYS_NFTABLES && len(message) > genLen {
			what = describe(of.kind&0xff, message[genLen:]) + ": "
		}
		return nil
	})
	return fmt.Errorf("%s%w", what, unix.Errno(-code))
}

// describe names a message for people.
func describe(kind uint16, body []byte) string {
	verbs := map[uint16]string{
		unix.NFT_MSG_NEWTABLE: "make table", unix.NFT_MSG_DELTABLE: "delete table", unix.NFT_MSG_NEWCHAIN: "make chain",
		unix.NFT_MSG_DELCHAIN: "delete chain", unix.NFT_MSG_NEWRULE: "add rule to", unix.NFT_MSG_DELRULE: "delete rules of",
		unix.NFT_MSG_NEWSET: "make set", unix.NFT_MSG_NEWSETELEM: "add elements to", unix.NFT_MSG_DELSETELEM: "delete elements of",
		unix.NFT_MSG_DELSET: "delete set",
	}
	object := findText(body, 2)
	if kind == unix.NFT_MSG_NEWCHAIN || kind == unix.NFT_MSG_DELCHAIN {
		object = findText(body, unix.NFTA_CHAIN_NAME)
	}
	if verb, ok := verbs[kind]; ok {
		return verb + " " + object
	}
	return fmt.Sprintf("message %d", kind)
}

// listing is a question to the kernel.
type listing struct {
	kind    uint16 // NFT_MSG_GET…
	family  Family
	request func(w *wire) // adds attributes; nil: none
}

// dump asks for a listing and calls fn for each object in it, without netfilter's header. It calls restart before it begins,
// and again when the kernel says that something changed meanwhile and the listing begins anew.
func (c *Conn) dump(l listing, restart func(), fn func(family Family, body []byte)) error {
	var w wire
	w.message(l.family, l.kind, unix.NLM_F_DUMP)
	if l.request != nil {
		l.request(&w)
	}
	w.finish()
	for try := 1; ; try++ {
		restart()
		changed, err := c.dumpOnce(w.buf, fn)
		if err != nil || !changed {
			return err
		}
		if try == dumpTries {
			return fmt.Errorf("list: %w", unix.EINTR)
		}
	}
}

func (c *Conn) dumpOnce(request []byte, fn func(family Family, body []byte)) (changed bool, err error) {
	if err := unix.Sendto(c.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	for done := false; !done; {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		err = messages(c.buf[:n], func(h header, body []byte) error {
			changed = changed || h.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case h.kind == unix.NLMSG_DONE || h.kind == unix.NLMSG_ERROR:
				done = true
				return failure(header{kind: unix.NLMSG_ERROR}, body, nil)
			case len(body) >= genLen:
				fn(Family(body[0]), body[genLen:])
			}
			return nil
		})
		if errors.Is(err, unix.EINTR) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return changed, nil
}
