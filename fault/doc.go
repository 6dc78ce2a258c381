// Package fault contains a panic within the unit of work that raised it.
//
//	work ──panic──▶ Contain ──▶ counted by unit, logged with its stack ──▶ an error (ErrPanic) ──▶ the caller's own retry
//
// A unit is one key of a controller, one pod of a node, one request, one query: work that can fail alone. Contain turns
// its panic into an error, so the retry with back-off that handles errors handles panics too. Keep is for loops that
// run as long as the process: it starts them again, with back-off. Fatal is for state that must not be used after a
// panic: it ends the process, even if a caller further up would recover the panic.
//
// Within a unit, hold a lock with a deferred unlock, or only over statements that cannot panic. After a contained panic
// any other lock stays held for ever.
//
// Point marks a statement at which tests can plant a panic. It is empty unless the program is built with the tag
// failpoint.
//
// The package imports only the standard library, so that every other package may import it.
package fault
