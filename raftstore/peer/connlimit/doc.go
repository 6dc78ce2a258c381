// Package connlimit decides which connections a server closes when there are too many, and which handshake computes next. Both decisions
// are fair between groups, which are addresses or users: a group with many connections waits and loses before a group with few.
//
//	Crowd: connections by group ──► Place(): room, or which one to close, or no room
//	Turns: handshakes by group  ──► Take(), Done(): which computes now, which is next
//
// Everything here is a value: no connection, no clock, no lock, no goroutine. The caller has them.
package connlimit
