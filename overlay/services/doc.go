// Package services owns the decision where packets to a Service or a host port go on this node.
//
//	Service, its EndpointSlices ─► Ports() ─► []Service ─┐ of one name
//	                                                     ├─► Plan ─┬─► Table: all of it
//	Pods of this node ─────────► HostPorts() ────────────┘         └─► Delta: what changed ─► package rules
//
// Everything here is a function of API objects: no kernel, no clock, no lock. A Plan remembers what each Service has put into
// the table, so that a change of one Service costs what belongs to it, however many there are. Many changes lead to the table
// that one change would have led to, except for the order of backends in a Group: a backend keeps its number as long as
// possible, so that a change of one backend is a change of one number. Two tables can be compared too (Diff), so that a
// restart changes only what differs in the kernel.
//
// A Plan is not safe for concurrent use.
package services
