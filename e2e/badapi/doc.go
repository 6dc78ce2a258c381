// Command badapi owns harmful requests: bodies that are small to send and large to decode, slow clients, and
// connections that keep a server busy with frames. It starts a server on a machine of its own. One client sends each
// kind of request while another client sends ordinary ones. The program prints the latencies of the second client and
// the server's memory.
//
//	one client ──▶ bombs, from many connections ──▶ ┌ balsa server ┐ ◀── another client: get and update, one by one
//	                                                └──────────────┘ ◀── its memory, from /proc
//
// Its test sends a few of each and decides by status codes and memory. Random requests, generated from a server's own
// documents, are in control/badapitest.
//
// Goroutines: those of an attack, joined when it ends, and the other client's.
package main
