// Package cork owns into how many system calls goes what an HTTP/2 connection writes.
//
//	http2 ──pops a frame──▶ scheduler ────more waits: hold────▶ Conn
//	  └──the frame──▶ upper ▶ crypto/tls ──record by record──▶ Conn ──▶ socket
//
// An HTTP/2 server writes frame by frame, and crypto/tls record by record: a long list
// is a thousand calls into the kernel, and fifty events for the watches of one
// connection are fifty. The scheduler of a connection's frames knows whether another
// frame waits, and while one does, Conn keeps the records: they go out together, as
// soon as there is none or enough has come. Nothing waits for time to pass, and
// nothing for the client. On a connection of several streams a write lets goroutines
// that are ready go first, for an event wakes all watches it is for.
//
// A frame that waits may be one that the client does not take yet (its windows, RFC
// 9113 section 5.2). Then the scheduler has no frame to give and lets go of what is
// held.
//
// Goroutines: one for as long as it takes to let go. Locks: Conn.mu, held while the
// socket is written to; whoever closes does not wait for it.
package cork
