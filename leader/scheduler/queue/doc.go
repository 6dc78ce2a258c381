// Package queue decides in which order pods are scheduled, and when a pod that fits no node is tried again.
//
//	        Add                Pop                 bound: Done
//	───────────────► active ─────────► in flight ──────────────►
//	                 ▲    ▲                │
//	       back-off  │    │ no back-off    │ Refused, Failed
//	       over      │    │ needed         ▼
//	              waiting ◄──────────  refused, gated
//	                       an event that may help
//
// Active pods are ordered by priority, then by arrival. A refused pod rests until an event that may help: one that a rule which refused
// the pod names in a Hint. Events that happen while a pod is in flight count too. The package has no goroutine: Pop, called by one
// goroutine, moves due pods and sleeps until the next one is due. Every method is safe for concurrent use; one mutex guards the queue,
// and hints run under it.
package queue
