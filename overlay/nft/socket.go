package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/fault"
)

const (
	// sendLimit is how large a transaction may be, in bytes: some 50,000 backends.
	sendLimit = 8 << 20
	// receiveLimit is how much the kernel may have waiting for us: it answers no message but those that fail.
	receiveLimit = 1 << 20
	dumpTries    = 10
	// answerWithin is how many seconds the kernel may take to answer; it answers at once.
	answerWithin = 10
)

// socket is a netlink connection to one network namespace.
type socket struct {
	fd    int
	port  uint32 // names the socket in the kernel's messages
	limit int    // of a transaction, in bytes
	buf   []byte
}

// dial connects to the namespace behind the file descriptor ns; 0 is that of the calling thread.
func dial(ns int) (*socket, error) {
	var fd int
	err := inside(ns, func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, err
	}
	s := &socket{fd: fd, buf: make([]byte, 64<<10)}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		s.close()
		return nil, err
	}
	if name, err := unix.Getsockname(fd); err == nil {
		if nl, ok := name.(*unix.SockaddrNetlink); ok {
			s.port = nl.Pid
		}
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendLimit) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendLimit) // as much as is allowed
	}
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveLimit) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveLimit)
	}
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerWithin})
	have, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF)
	if err != nil {
		s.close()
		return nil, err
	}
	s.limit = have / 2
	return s, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// inside runs fn in the namespace behind ns.
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
func (s *socket) transact(data []byte) error {
	if err := unix.Sendto(s.fd, data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	var first error
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return first
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return errors.Join(first, err)
		}
		err = messages(s.buf[:n], func(h header, body []byte) error { return failure(h, body, data) })
		if first == nil {
			first = err
		}
	}
}

// failure is the error in a message, if it is about one; sent are the messages it may be about.
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

// dump asks for a listing and calls fn for what is listed, without netfilter's header. When the kernel says that something
// changed meanwhile it begins again, with restart.
func (s *socket) dump(kind uint16, family byte, request func(w *wire), restart func(), fn func(family byte, body []byte) error) error {
	w := wire{family: family}
	w.message(kind, unix.NLM_F_DUMP)
	if request != nil {
		request(&w)
	}
	w.finish()
	for try := 1; ; try++ {
		restart()
		changed, err := s.dumpOnce(w.buf, fn)
		if err != nil || !changed {
			return err
		}
		if try == dumpTries {
			return fmt.Errorf("list: %w", unix.EINTR)
		}
	}
}

func (s *socket) dumpOnce(request []byte, fn func(family byte, body []byte) error) (changed bool, err error) {
	if err := unix.Sendto(s.fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	var failed error
	for done := false; !done; {
		n, _, err := unix.Recvfrom(s.fd, s.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, err
		}
		err = messages(s.buf[:n], func(h header, body []byte) error {
			changed = changed || h.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case h.kind == unix.NLMSG_DONE || h.kind == unix.NLMSG_ERROR:
				done = true
				return failure(header{kind: unix.NLMSG_ERROR}, body, nil)
			case len(body) < genLen || failed != nil:
				return nil
			}
			failed = fn(body[0], body[genLen:])
			return nil
		})
		if errors.Is(err, unix.EINTR) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
	return changed, failed
}
