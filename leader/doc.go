// Package leader runs the parts that run once in the cluster: the controllers and the scheduler.
//
//	Elector ──Campaign──▶ Term (epoch, fenced API client)
//	                        │ one context
//	                        ▼
//	     shared informers ──▶ controllers and scheduler, one row each in controllers.go ──▶ writes, each refused
//	                        │                                                              once the epoch has passed
//	          lost, or ctx ends: cancel, wait for every goroutine, resign, campaign again
//
// A leadership is one term: everything in it shares one context, one set of informers and one epoch. Two terms never
// overlap within a process, and between processes the store refuses the writes of the older term, independent of clocks and
// pauses. So no controller needs to know about leadership.
//
// Goroutines: Run blocks; each term starts one goroutine per runner, the informers' own, and one that waits for the loss.
// All of them have returned before Run campaigns again or returns.
package leader
