// Package peer owns the one TCP port of a server and everything that servers of
// a cluster say to each other over it: who is let in, Raft's messages, and the
// requests of a peer that does not lead to the one that does.
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
// # Who is who
//
// A server is its ID; Raft's addresses are IDs too. Where a server is, Resolve
// says at each dial, so a server may move. Who it is, its certificate says: the
// cluster's CA, organization balsa:servers, common name balsa:server:<ID>, and
// for the dialing side the DNS name <ID>.server.balsa. Then both say hello, and
// each refuses a server of another cluster, of an older generation (the cluster
// has been reset without it), or without a protocol version in common. A server
// that meets a newer generation hears it by OnGeneration.
//
// Certificates and roots are asked for at each handshake. A connection ends
// with the certificate of the peer, when the peer shows a newer one elsewhere,
// when this server has a newer one, when Resolve names another address, or by
// Drop.
//
// # What is bounded
//
// Before the handshake: connections overall, those giving way whose client says
// nothing, of the address with the most; 5 s of the client's time. Few handshakes
// compute at once, and each address has its turn; one that waits for its client
// has no turn, so that clients that stall hold nobody up. After it: connections
// of strangers, overall and per address, the one giving way that was used the
// longest ago; connections of users who have proved themselves by a certificate
// or a request, overall and per user and address, idle ones giving way (package
// connlimit decides).
//
// From a peer: 16 connections per protocol; a Raft message
// 32 MiB, whose memory grows with the bytes that come and not with the length
// that was said, and 128 MiB of large messages from all peers; snapshots stream
// through 256 KiB; 24 batches of 16 MiB, refused before they are read. A refusal
// is logged once a minute per remote and kind, for at most 4096 of these.
//
// # Raft's messages
//
// One request at a time on a connection, except that appends are pipelined. A
// frame is a byte of kind, four of length, and fields of varints and strings in
// a fixed order. An append takes entries up to 4 MiB and leaves the rest to the
// next one: it shortens the request, and Raft goes on from the last entry in it.
// A kept connection that turns out to be dead is replaced within the same
// request; all of Raft's requests may be made twice.
//
// # Goroutines
//
// Port.Run accepts, and joins one goroutine per handshake, which goes on to
// serve the connection when it is Raft's. Network.Run holds the gRPC server and
// joins one goroutine per peer asked, which pings it. Each pipeline has one that
// takes the answers; Close of the pipeline joins it.
//
// # Locks
//
// Network.mu guards links and the transport, registry.mu the connections,
// transport.mu the kept ones, gate.mu the port's counts. None is held while
// another is taken or while a connection is used.
package peer
