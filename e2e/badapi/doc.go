// Command badapi owns requests that are meant to hurt: bodies that are small to send and large to understand, clients that
// are slow, connections that keep a server busy with frames. It starts a server on a machine of its own, lets one client do
// each of them while another makes ordinary requests, and prints what the second one noticed and what the server held.
//
//	one client ──▶ bombs, from many connections ──▶ ┌ balsa server ┐ ◀── another client: get and update, one by one
//	                                                └──────────────┘ ◀── its memory, from /proc
//
// Its test makes few of each and decides by status codes and memory. Random requests, made from what a server says about
// itself, are another program's: control/badapi.
//
// Goroutines: those of an attack, joined when it ends; the other client's.
package main
