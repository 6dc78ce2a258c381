package dns

import (
	"net/netip"
	"sync"
)

const (
	// clientPackets is how many datagrams of one client may wait, allPackets how many of all clients.
	clientPackets = 128
	allPackets    = 4096
)

// packet is a datagram with a query. buffer is the memory of data.
type packet struct {
	from   netip.AddrPort
	data   []byte
	buffer *[smallPacket]byte // nil: data has its own memory
}

// clientQueues hold the datagrams that wait, one queue for each client. Clients have their turn one after the other, so that a
// client that sends much delays only itself.
type clientQueues struct {
	mu     sync.Mutex
	more   sync.Cond // signalled when a packet arrives or the queues are closed
	byFrom map[netip.Addr]*clientQueue
	turns  []*clientQueue // clients in turn; the next one is at index first
	first  int
	size   int
	over   bool
}

type clientQueue struct {
	from    netip.Addr
	packets []packet
}

func newClientQueues() *clientQueues {
	l := &clientQueues{byFrom: make(map[netip.Addr]*clientQueue)}
	l.more.L = &l.mu
	return l
}

// enqueue adds a datagram; it returns false when there is no room for it.
func (l *clientQueues) enqueue(p packet) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size >= allPackets || l.over {
		return false
	}
	at := l.byFrom[p.from.Addr()]
	if at == nil {
		at = &clientQueue{from: p.from.Addr()}
		l.byFrom[at.from] = at
		l.turns = append(l.turns, at)
	}
	if len(at.packets) >= clientPackets {
		return false
	}
	at.packets = append(at.packets, p)
	l.size++
	l.more.Signal()
	return true
}

// dequeue waits for the next datagram; it returns false when the queues are closed.
func (l *clientQueues) dequeue() (packet, bool) {
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
	if l.first == len(l.turns) || l.first > allPackets { // drop the served part, so that the slice does not grow
		l.turns = append(l.turns[:0], l.turns[l.first:]...)
		l.first = 0
	}
	return p, true
}

// close ends all calls of dequeue.
func (l *clientQueues) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	l.more.Broadcast()
}
