// Package gatewayapi embeds definitions of the Gateway API: those of the standard channel that Balsa serves, and a
// GatewayClass. They are installed only on request. Upstream's own definitions work as well.
//
// No goroutines, no locks.
package gatewayapi
