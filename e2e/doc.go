// Package e2e starts the built binary on machines of its own, uses it as people
// do, breaks it, and asks it what happened. It needs root and bin/balsa.
package e2e
