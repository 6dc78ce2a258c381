package dns

import (
	"net/netip"
	"sync"
)

const (
	// linePackets is how many datagrams of one client may wait, linesPackets how many of all.
	linePackets  = 128
	linesPackets = 4096
)

// packet is a datagram with a question. buffer is the room it lies in.
type packet struct {
	from   netip.AddrPort
	data   []byte
	buffer *[smallPacket]byte // nil: data has room of its own
}

// lines are where datagrams wait, one line for each client that waits. Clients have their turn one after the other, so
// that one who sends much delays itself.
type lines struct {
	mu     sync.Mutex
	more   sync.Cond // packets are there, or it is over
	byFrom map[netip.Addr]*line
	turns  []*line // a ring; the next is at first
	first  int
	size   int
	over   bool
}

type line struct {
	from    netip.Addr
	packets []packet
}

func newLines() *lines {
	l := &lines{byFrom: make(map[netip.Addr]*line)}
	l.more.L = &l.mu
	return l
}

// put has a datagram wait; false when there is no room for it.
func (l *lines) put(p packet) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size >= linesPackets || l.over {
		return false
	}
	at := l.byFrom[p.from.Addr()]
	if at == nil {
		at = &line{from: p.from.Addr()}
		l.byFrom[at.from] = at
		l.turns = append(l.turns, at)
	}
	if len(at.packets) >= linePackets {
		return false
	}
	at.packets = append(at.packets, p)
	l.size++
	l.more.Signal()
	return true
}

// take waits for the next datagram; false when it is over.
func (l *lines) take() (packet, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.size == 0 && !l.over {
		l.more.Wait()
	}
	if l.over {
		return packet{}, false
	}
	at := l.turns[l.first]
	l.first++
	p := at.packets[0]
	at.packets = at.packets[1:]
	l.size--
	if len(at.packets) > 0 {
		l.turns = append(l.turns, at)
	} else {
		delete(l.byFrom, at.from)
	}
	if l.first == len(l.turns) || l.first > linesPackets { // do not let the past grow
		l.turns = append(l.turns[:0], l.turns[l.first:]...)
		l.first = 0
	}
	return p, true
}

// end lets everybody who waits in take go.
func (l *lines) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.more.Broadcast()
}
