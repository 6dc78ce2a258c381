package kubeletapi

import (
	"net"
	"sync"
)

// connSet is the set of open connections, so that those taken over by a protocol upgrade can be closed too.
type connSet struct {
	mu   sync.Mutex
	open map[net.Conn]bool
}

func (s *connSet) closeAll() {
	s.mu.Lock()
	var all []net.Conn
	for c := range s.open {
		all = append(all, c)
	}
	s.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// trackingListener keeps its connections in a set while they are open.
type trackingListener struct {
	net.Listener
	set *connSet
}

// Accept is part of net.Listener.
func (l *trackingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	t := &trackedConn{Conn: c, set: l.set}
	l.set.mu.Lock()
	l.set.open[t] = true
	l.set.mu.Unlock()
	return t, nil
}

type trackedConn struct {
	net.Conn
	set *connSet
}

// Close is part of net.Conn.
func (c *trackedConn) Close() error {
	c.set.mu.Lock()
	delete(c.set.open, c)
	c.set.mu.Unlock()
	return c.Conn.Close()
}
