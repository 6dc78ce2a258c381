// Package fault keeps a panic in the unit of work that raised it.
//
//	work ──panic──▶ Contain ──▶ counted by unit, logged with its stack ──▶ an error (ErrPanic) ──▶ the caller's own retry
//
// A unit is one key of a controller, one pod of a node, one request, one query: what can end by itself while everything
// else goes on. Contain turns its panic into an error, so that the retry with back-off that errors already have serves
// panics too. Keep is for loops that run as long as the process: it starts them again, with back-off. Fatal is for state
// that must not be used after a panic: it ends the process, even below somebody else's recover.
//
// Code inside a unit holds a lock only with a deferred unlock, or over statements that cannot panic: a contained panic
// leaves every other lock held for ever.
//
// Point marks a place where tests plant a panic. It is empty unless the program is built with the tag failpoint.
//
// The package imports the standard library alone, so that every other may import it.
package fault
