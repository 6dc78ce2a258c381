// Package servers owns how a machine reaches the API when there are several servers: which one it takes, when it leaves it,
// and what it does in between.
//
//	list, servers' verdicts ──Update, Drop──▶ Set ◀──── order: a hash of the node's name, stable and spread
//	                                          │  │
//	client-go ──▶ Transport ──DialTLSContext──┘  └──dial── Balancer ◀── kubectl and any program, 127.0.0.1:6444
//	                  │                                        │
//	                  └────────── one connection ──────────────┴──────▶ one of the servers
//
// A dial asks the servers in order and does not wait for a slow one: after a stagger the next is asked beside it, and
// whichever finishes its handshake first is taken. A server that accepts and says nothing, as a stopped process does, so
// costs one stagger. An established connection is left when another server gives the server up (its connections are closed, so
// that everything on them fails at once), or when it does not answer an HTTP/2 ping in time. Watches resume by themselves:
// client-go asks the next server for the same resourceVersion.
//
// A server that comes back is not stormed: connections stay where they are, and after a random while each transport opens a
// new connection where it belongs, lets what runs on the old one end by itself, and closes it when it is empty.
//
// The Balancer passes TLS through untouched: it reads the ClientHello, which is the same for every server, sends it to one
// after the other until one answers, and copies bytes from then on.
//
// Goroutines: Set.Run has one, Balancer.Run one per connection and direction; both join theirs. A dial has one per attempt,
// which ends with it. Locks: Set.mu guards list and connections, transport.mu its generation; neither is held across a call
// that can block, and transport.mu is never taken under Set.mu.
package servers
