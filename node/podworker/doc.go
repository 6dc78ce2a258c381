// Package podworker carries out the decisions of package podloop for one pod.
//
// A Worker is one goroutine for one pod: it asks podloop.Next what to do, starts each action as an operation beside itself,
// and writes the pod's status to the API. Operations take as long as they need (a pull, a stop with its grace period), so a
// deletion is acted on while an image is still being pulled. Their results come back through the worker's mailbox.
//
// The worker's goroutine is the only writer of its pod's state. Its exported methods may be called from any goroutine: they
// post to the mailbox and return at once. Readers see immutable Views. Host has everything that the workers of a node
// share: the runtime, volumes, probes, cgroups, images, the API. A worker knows nothing of the agent that made it.
//
// Containers outlive the worker: when its context ends it leaves them running, and the next process adopts them.
package podworker
