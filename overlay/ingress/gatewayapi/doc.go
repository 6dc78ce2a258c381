// Package gatewayapi owns the definitions of the Gateway API that the binary carries: of the standard channel those that
// Balsa serves, and a GatewayClass. They are installed only when asked for; whoever installs upstream's own has the same.
//
// No goroutines, no locks.
package gatewayapi
