package peer

import "net"

// NetConn returns the connection that the listener accepted, as tls.Conn's method of that name does.
func (c *portConn) NetConn() net.Conn { return c.Conn }
