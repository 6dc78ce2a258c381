// Package mux multiplexes many streams over one connection that a node has opened to a server. The server opens each
// stream, and the node connects it to a target.
//
//	server                                    node
//	Opener ── open "10.244.1.7:80" ─────────▶ Carry ── dial ──▶ 10.244.1.7:80
//	       ◀───────── opened, or refused ────
//	       ◀──── data, credit, end, reset ───▶
//
// # Frames
//
// A frame has one byte for its kind, two for its length, four for the stream's number, and the payload; at most it fills
// two TLS records. The opener's first frame is a hello, or a bye with a reason. A node cannot open streams, so it cannot
// flood a server with them. An invalid frame ends the connection.
//
// # Bounds
//
// A stream may have Window unread bytes in each direction and gets more credit as they are read, so a slow reader delays
// only the writer of its own stream. The window of a fast reader grows to 4 MiB; all windows of a connection together grow
// by at most 16 MiB. Only received and unread bytes are buffered. Both ends bound the number of streams. The connection
// ends when the peer reads nothing for the time stall, and when an Opener's ping gets no answer for twice its patience.
// Opener.Beat pings all the time to detect whether the node is alive; it never ends a connection, because a slow node can
// still carry streams.
//
// HTTP/2 does not fit, because in Go the server side cannot close its direction and go on reading. yamux does not fit,
// because it cannot signal that the reader is gone. The carried protocols need both.
//
// # Goroutines and locks
//
// Opener.Run reads on its caller's goroutine and never waits for the user of a stream. Carry reads on its caller's
// goroutine and joins two goroutines per stream. link.mu guards the table of streams, stream.mu a stream; neither is held
// while another lock is taken or a frame is sent. A goroutine must hold the token of link.writing to write a frame.
package mux
