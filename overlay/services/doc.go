// Package services owns the decision where packets to a Service or a host port go on this node.
//
//	Service, its EndpointSlices ─► Ports() ─► []Service ─┐ of one name
//	                                                     ├─► Plan ─┬─► Table: all of it
//	Pods of this node ─────────► HostPorts() ────────────┘         └─► Delta: what changed ─► package nft
//
// Everything here is a function of API objects: no kernel, no clock, no lock. A Plan remembers what each Service has put
// into the table, so that a change of one costs what belongs to that one, however many there are. Where it got to by many
// changes is where it would have got to at once, except for the order of backends in a Group: a backend keeps its number as
// long as it can, so that one backend's change is one number's. Two tables can be compared too (Diff), which is how a
// restart finds again what is right already.
//
// A Plan is not safe for concurrent use.
package services
