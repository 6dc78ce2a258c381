package pmtu

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/balsahq/balsa/overlay/routes"
)

// run plays a search against a way that takes packets up to a size, and returns what it finds and with how many probes.
func play(s search, takes, told int) (found, probes int) {
	for s.size != 0 {
		s.tried++
		probes++
		if s.size <= takes {
			s.answered()
		} else {
			s.lost(told, false)
		}
	}
	return s.passed, probes
}

func TestSearchFindsTheLargestCommonSize(t *testing.T) {
	for takes := floor; takes <= 1500; takes++ {
		want := 0
		for _, size := range sizes {
			if size <= takes && size < 1500 || size == takes {
				want = size
			}
		}
		found, probes := play(newSearch(1500, 1500), takes, 0)
		if takes == 1500 {
			want = 1500
		}
		if found != want && found != takes || probes > 30 {
			t.Errorf("takes %d: found %d with %d probes, want %d", takes, found, probes, want)
		}
		if found, probes := play(newSearch(1500, 1500), takes, takes); takes < 1500 && (found != takes || probes > 2) {
			t.Errorf("told of %d: found %d with %d probes", takes, found, probes)
		}
	}
	if found, probes := play(newSearch(9000, 9000), 9000, 0); found != 9000 || probes != 1 {
		t.Errorf("found %d with %d probes", found, probes)
	}
	if found, probes := play(newSearch(9000, 9000), 1500, 0); found != 1500 || probes > 20 {
		t.Errorf("found %d with %d probes", found, probes)
	}
}

// TestPeerThatComesLater: what is lost before a peer answers says nothing of sizes.
func TestPeerThatComesLater(t *testing.T) {
	s := newSearch(1500, 1500)
	for range tries {
		s.tried++
		s.lost(0, false)
	}
	if found, _ := play(s, 1500, 0); found != 1500 {
		t.Errorf("found %d", found)
	}
}

// TestWayChanges: a look at a way that was narrow finds out that it is wider or narrower now.
func TestWayChanges(t *testing.T) {
	for _, takes := range []int{1500, 1400, 1300} {
		if found, _ := play(newSearch(1400, 1500), takes, 0); found != takes {
			t.Errorf("found %d, want %d", found, takes)
		}
	}
}

// TestSilentPeer: about a peer that answers nothing, nothing is known, and it is soon given up.
func TestSilentPeer(t *testing.T) {
	if found, probes := play(newSearch(1500, 1500), 0, 0); found != 0 || probes > 200 {
		t.Errorf("found %d with %d probes", found, probes)
	}
}

// TestRoutersMayLie: what one says that makes no sense is not believed, and a search ends all the same.
func TestRoutersMayLie(t *testing.T) {
	for _, told := range []int{-1, 0, 1, 68, floor - 1, 1500, 1501, 65535} {
		if found, _ := play(newSearch(1500, 1500), 1400, told); found != 1400 {
			t.Errorf("told %d: found %d", told, found)
		}
	}
	if found, _ := play(newSearch(1500, 1500), 1500, 600); found != 1500 {
		t.Errorf("found %d", found)
	}
}

func TestProbeHasTheSizeAskedFor(t *testing.T) {
	tunnel := &routes.Tunnel{VNI: 98, Overhead: 50, Address: netip.MustParseAddr("10.244.1.0"), MAC: routes.MAC{1}}
	peer := &routes.Peer{Address: netip.MustParseAddr("10.244.2.0"), MAC: routes.MAC{2}}
	const outer = 28
	b := probe(tunnel, peer, 1500, 7, 9)
	if len(b) != 1500-outer || checksum(b[22:42]) != 0 || checksum(b[42:]) != 0 || binary.BigEndian.Uint16(b[24:]) != 1450 {
		t.Errorf("%d bytes: % x", len(b), b[:60])
	}
	tunnel.Relayed, tunnel.Overhead = true, 28
	if b := probe(tunnel, peer, 1500, 7, 9); len(b) != 1500-outer || b[0] != 0x45 {
		t.Errorf("%d bytes: % x", len(b), b[:60])
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 7, 0, 9})
	f.Fuzz(func(t *testing.T, m []byte) {
		if sequence, ok := answer(m, 7); ok && (len(m) < 8 || m[0] != 0 || binary.BigEndian.Uint16(m[6:]) != sequence) {
			t.Errorf("% x is answer %d", m, sequence)
		}
	})
}
