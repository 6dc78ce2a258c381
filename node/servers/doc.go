// Package servers chooses the API server that a machine talks to when there are several, and decides when it leaves that
// server for another.
//
//	list, servers' verdicts ──Update, Drop──▶ Set ◀──── order: a hash of the node's name, stable and spread
//	                                          │  │
//	client-go ──▶ Transport ──DialTLSContext──┘  └──dial── Balancer ◀── kubectl and any program, 127.0.0.1:6444
//	                  │                                        │
//	                  └────────── one connection ──────────────┴──────▶ one of the servers
//
// A dial tries the servers in order and does not wait for a slow one: after a stagger it tries the next server, too, and takes
// the connection whose handshake ends first. So a server that accepts connections and never answers, such as a stopped
// process, costs one stagger. Connections to a server are closed when another server reports it as dead, so that every
// request on them fails at once, or when it does not answer an HTTP/2 ping in time. Watches resume by themselves: client-go
// asks the next server for the same resourceVersion.
//
// When a server comes back, not all clients return at once: after a random delay each transport opens a connection to its
// preferred server, lets the requests on the old connection end, and closes that.
//
// The Balancer passes TLS through untouched: it reads the ClientHello, which is the same for every server, sends it to one
// after the other until one answers, and then copies bytes.
//
// Goroutines: Set.Run has one, Balancer.Run one per connection and direction; both join theirs. A dial has one per attempt,
// which ends with it. Locks: Set.mu guards list and connections, transport.mu its generation; neither is held across a call
// that can block, and transport.mu is never taken under Set.mu.
package servers
