// Package services decides to which backends this node sends packets for a Service or a host port.
//
//	Service, its EndpointSlices ─► Ports() ─► []Service ─┐ of one name
//	                                                     ├─► Plan ─┬─► Table: all of it
//	Pods of this node ─────────► HostPorts() ────────────┘         └─► Delta: what changed ─► package rules
//
// Everything here is a function of API objects: no kernel, no clock, no lock. A Plan records each Service's share of the
// table, so the cost of a change of one Service depends on that Service alone. The table does not depend on the order of
// changes, except for the order of backends in a Group: a backend keeps its number as long as possible, so that a change of
// one backend changes one number. Two tables can be compared too (Diff), so that a restart changes only what differs in the
// kernel.
//
// A Plan is not safe for concurrent use.
package services
