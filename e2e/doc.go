// Package e2e tests the built binary on machines of its own: it starts clusters, uses them as people do, breaks them,
// and checks the outcome. It needs root and bin/balsa.
package e2e
