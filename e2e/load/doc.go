// Package load owns what benchmarks of the API send and how they count: objects
// in prebuilt encodings, connections that do no more than HTTP/2 asks for, and
// windows of load.
//
//	Window ── a goroutine a client ── do ──▶ Conn ──▶ API
//	Template (bytes with places to fill in) ──┘  └── what comes is counted, not decoded
//
// The clients share the cores with the server they measure, so whatever they
// spend is missing there. A Conn belongs to one goroutine.
package load
