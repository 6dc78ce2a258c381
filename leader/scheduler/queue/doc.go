// Package queue owns the order in which pods are tried, and when a pod that was refused is tried again.
//
//	        Add                Pop                 bound: Done
//	───────────────► active ─────────► in flight ──────────────►
//	                 ▲    ▲                │
//	       back-off  │    │ no back-off    │ Refused, Failed
//	       over      │    │ needed         ▼
//	              waiting ◄──────────  refused, gated
//	                       an event that may help
//
// Active pods are ordered by priority, then by arrival. A refused pod rests until an event happens that one of the
// rules which refused it names as possibly helpful (Hint); an event that happens while a pod is in flight counts too.
// There is no goroutine here: Pop, called by one goroutine, moves what is due and sleeps until the next moment anything
// could be. Every method is safe for concurrent use; one mutex guards the queue and hints run under it.
package queue
