// Package mux owns what is said on one connection that a node has opened to a server: many connections inside it, each
// begun by the server and made by the node.
//
//	server                                    node
//	Opener ── open "10.244.1.7:80" ─────────▶ Carry ── dial ──▶ 10.244.1.7:80
//	       ◀───────── opened, or refused ────
//	       ◀──── data, credit, end, reset ───▶
//
// # Frames
//
// A byte of kind, two of length, four of the stream's number, and so many bytes of payload, at most what makes two TLS
// records. The opener's first frame is a hello or, with the reason, a bye; a node opens nothing, so that it cannot
// flood a server with streams. A frame that cannot be is the end of the connection.
//
// # Bounds
//
// A stream may have Window bytes under way in each direction; more is given as they are read, so that a slow reader
// slows its own writer and nobody else. The window of a reader that keeps up grows to 4 MiB, and those of a connection
// by 16 MiB together. What is kept for a stream is what came and was not read. An Opener has at most
// MaxStreams, and Carry refuses more than its own. A write that the other end does not take for stall ends the
// connection, as does an Opener's question that nothing at all is answered to for twice its patience. Opener.Beat asks
// all the time, to tell whether the node is alive; its verdict ends no connection, because a slow node still carries.
//
// HTTP/2 would have been the format, but in Go the serving end cannot end its direction and go on reading, and yamux
// cannot say that nobody reads any more; both are daily bread of what is carried here.
//
// # Goroutines and locks
//
// Opener.Run reads, on its caller's goroutine; nothing it does waits for a stream's user. Carry reads on its caller's,
// and joins two goroutines a stream. link.mu guards the streams' table, stream.mu a stream; neither is held while the
// other is taken or anything is sent. Whoever holds the token of link.writing writes one frame.
package mux
