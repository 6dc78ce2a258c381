package peer

import "net"

// NetConn is the connection as the listener gave it, for those above TLS who know more
// of it (as crypto/tls's method of that name).
func (c *portConn) NetConn() net.Conn { return c.Conn }
