// Package connlimit decides which connections a server keeps when there are too many, and whose handshake is worked on
// next. Both decisions are fair between groups, which are addresses or users: a group that has much waits and loses before
// one that has little.
//
//	Crowd: connections by group ──► Place(): room, or which one gives way, or no
//	Turns: handshakes by group  ──► Take(), Done(): who works now, who is next
//
// Everything here is values: no connection, no clock, no lock, no goroutine. The caller has them.
package connlimit
