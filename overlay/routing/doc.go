// Package routing owns the decision where packets to a Service or a host port go on this node.
//
//	Services, EndpointSlices ──► Services() ──► []Service ─┐
//	                                                       ├─► Build() ──► Table ──► package nft
//	Pods of this node ─────────► HostPorts() ──────────────┘
//
// Everything here is a pure function of API objects: no kernel, no clock, no lock. A Table holds chains whose names are
// derived from their content, and maps that lead to them; two tables differ exactly in the chains and elements that have
// to be added and removed, so an update costs what changed and a restart finds again what is right already.
package routing
