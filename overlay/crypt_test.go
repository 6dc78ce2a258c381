package overlay

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/relay"
	"github.com/balsahq/balsa/overlay/routes"
)

// tap keeps what passes the links of a namespace, frame by frame, until it is stopped.
func (s space) tap() (stop func() [][]byte) {
	s.T.Helper()
	const everything = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	fd := -1
	if err := s.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, everything)
		return err
	}); err != nil {
		s.T.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	file := os.NewFile(uintptr(fd), "tap")
	var frames [][]byte
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			frame := make([]byte, 64<<10)
			n, err := file.Read(frame)
			if errors.Is(err, unix.ENETDOWN) {
				continue
			}
			if err != nil {
				return
			}
			frames = append(frames, bytes.Clone(frame[:n]))
		}
	}()
	stop = sync.OnceValue(func() [][]byte { file.Close(); <-done; return frames })
	s.T.Cleanup(func() { stop() })
	return stop
}

// TestNothingReadableIsOnTheWire: what pods say to each other, and who they are, is to be seen in packets of mode UDP, and in
// none of WireGuard's.
func TestNothingReadableIsOnTheWire(t *testing.T) {
	for mode, readable := range map[routes.Mode]bool{routes.UDP: true, routes.WireGuard: false} {
		t.Run(string(mode), func(t *testing.T) {
			l := newLAN(t, mode)
			stop := l.router.tap()
			n1, n2, n3 := l.nodes[0], l.nodes[1], l.nodes[2]
			for _, to := range []*member{n2, n3} { // on the same subnet, and on the other
				l.reached(n1.pod, to.podAddress+":8080", "pod-"+to.name, n1.podAddress)
			}
			frames := stop()
			said, named, port := 0, 0, 0
			for _, f := range frames {
				if bytes.Contains(f, []byte("pod-n")) {
					said++
				}
				if bytes.Contains(f, append(net.ParseIP(n1.podAddress).To4(), net.ParseIP(n3.podAddress).To4()...)) {
					named++
				}
				if bytes.Contains(f, []byte{DefaultWireGuardPort >> 8, DefaultWireGuardPort & 0xff}) {
					port++
				}
			}
			t.Logf("of %d frames %d have text of pods, %d their addresses, %d are of WireGuard's port", len(frames), said, named, port)
			if (said > 0) != readable || (named > 0) != readable {
				t.Errorf("readable: %v, want %v", said > 0, readable)
			}
			// In the other mode, checksums and sequence numbers may have these two bytes by chance.
			if !readable && port == 0 {
				t.Error("no frame is of WireGuard's port")
			}
		})
	}
}

// TestWrongKeysGetNothing: a node that has not the private key to what it published reaches nobody and is not reached; nor
// one that says it has another's key, nor one that does not encrypt. The others notice nothing, and each fault is told.
func TestWrongKeysGetNothing(t *testing.T) {
	l := newSubnets(t, routes.WireGuard)
	for i, address := range []string{"192.0.2.11", "192.0.2.12", "192.0.2.13", "192.0.2.140", "192.0.2.141"} {
		m := l.plugNode(i+1, address)
		l.nodes = append(l.nodes, m)
		l.announce(m)
	}
	good, better, fool, thief, plain := l.nodes[0], l.nodes[1], l.nodes[2], l.nodes[3], l.nodes[4]
	other, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own, err := relay.LoadKey(filepath.Join(good.cfg.StateDir, "wireguard.key"))
	if err != nil {
		t.Fatal(err)
	}
	fool.falseKey = routes.Key(other.PublicKey().Bytes()).String()
	thief.falseKey = routes.Key(own.PublicKey().Bytes()).String()
	plain.cfg.Mode = routes.Auto
	for _, m := range l.nodes {
		m.start(l)
		m.plugPod(t)
	}
	l.reached(good.pod, better.podAddress+":8080", "pod-n2", good.podAddress)
	l.reached(better.pod, good.podAddress+":8080", "pod-n1", better.podAddress)
	l.eventually("the one without a key is told of", func() bool {
		return l.log.contains("on=n1", "node n5 has published no WireGuard key")
	})
	l.eventually("and tells of the others", func() bool { return l.log.contains("on=n5", "node n1 encrypts, and this node does not") })
	l.eventually("another's key is told of", func() bool { return l.log.contains("on=n2", "node n4 has the WireGuard key of node n1") })
	for _, bad := range []*member{fool, thief, plain} {
		if who, _, err := good.pod.ask("tcp", bad.podAddress+":8080"); err == nil {
			t.Errorf("%s was reached", who)
		}
		if who, _, err := bad.pod.ask("tcp", good.podAddress+":8080"); err == nil {
			t.Errorf("%s was reached by %s", who, bad.name)
		}
	}
	l.reached(good.pod, better.podAddress+":8080", "pod-n2", good.podAddress)
	info, err := os.Stat(filepath.Join(good.cfg.StateDir, "wireguard.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info.Mode(), err)
	}
}
