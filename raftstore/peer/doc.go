// Package peer owns the one TCP port of a server, and the protocols between the servers of a cluster: which connections are admitted,
// Raft's messages, and the requests of followers to the leader.
//
//	              TCP
//	               │ gate: handshakes in turns, bounded strangers, bounded users
//	┌ Port ────────▼──────────────────────────────────────────────────────────┐
//	│ TLS, split by what the client offers (ALPN)                             │
//	│  "balsa-raft/1"  "balsa-peer/1"      "h2" alone       anything else     │
//	└──────┬───────────────┬───────────────────┬─────────────────┬────────────┘
//	       │ certificate of a server required  │ verified        │ asked for,
//	       │               │                   │ if there is one │ not verified
//	┌ Network ─────────────▼──────────┐        ▼                 ▼
//	│ hello: version, cluster,        │      GRPC()            REST()
//	│ generation, server; both ways   │   etcd v3, Cluster     net/http
//	│      │               │          │
//	│  transport        service ◄─────┼── Serve(raftstore.Handler)
//	│      │            link    ◄─────┼── Peers() raftstore.Peers
//	└──────▼──────────────────────────┘
//	 raft.Transport
//
// # Identity
//
// A server is its ID, and Raft's addresses are IDs too. Resolve gives a server's address at each dial, so a server may move. A server
// proves its ID with its certificate: signed by the cluster's CA, organization balsa:servers, common name balsa:server:<ID>, and for the
// dialing side the DNS name <ID>.server.balsa. Then both sides send a hello, and each refuses a server of another cluster, of an older
// generation (the cluster has been reset without it), or without a protocol version in common. A server that meets a newer generation
// calls OnGeneration.
//
// Certificates and roots are read at each handshake. A connection ends when the peer's certificate expires, when the peer shows a newer
// one on another connection, when this server has a newer one, when Resolve returns another address, or by Drop.
//
// # Bounds
//
// Package connlimit decides which connection is closed when there are too many.
//
// Before the handshake, all connections together are bounded; one whose client is silent is closed first, from the address with the most.
// A client has 5 s. Few handshakes compute at once, and the addresses take turns. A handshake that waits for its client has no turn, so
// clients that stall delay no others.
//
// After the handshake, anonymous connections are bounded overall and per address; the one that was used longest ago is closed first.
// Connections of users that a certificate or a request has proved are bounded overall and per user and address; idle ones are closed
// first.
//
// A peer may have 16 connections per protocol. A Raft message is at most 32 MiB, and its memory grows with the bytes that arrive, not with
// the announced length; large messages of all peers together take at most 128 MiB. Snapshots stream through 256 KiB. At most 24 batches of
// 16 MiB are accepted from a peer; more are refused before they are read. A refusal is logged once a minute per remote and kind, for at
// most 4096 of these pairs.
//
// # Raft's messages
//
// A connection carries one request at a time, except that appends are pipelined. A frame is one byte of kind, four bytes of length, and
// fields of varints and strings in a fixed order. An append takes entries up to 4 MiB and leaves the rest to the next: it shortens the
// request, and Raft goes on from the last entry in it. An idle connection that turns out to be dead is replaced within the same request;
// every request of Raft may be made twice.
//
// # Goroutines
//
// Port.Run accepts, and joins one goroutine per handshake, which goes on to serve the connection when it is Raft's. Network.Run holds the
// gRPC server and joins one goroutine per peer with a link, which pings it. Each pipeline has one that receives the answers; Close of the
// pipeline joins it.
//
// # Locks
//
// Network.mu guards links and the transport, registry.mu the connections, transport.mu the idle ones, gate.mu the port's counts. None is
// held while another is taken or while a connection is used.
package peer
