// Package load owns the clients of API benchmarks: objects in prebuilt encodings, connections with only the necessary
// parts of HTTP/2, and windows of load.
//
//	Window ── a goroutine a client ── do ──▶ Conn ──▶ API
//	Template (bytes with places to fill in) ──┘  └── what comes is counted, not decoded
//
// The clients share the processors with the measured server, so they have to use little CPU time. A Conn belongs to one
// goroutine.
package load
