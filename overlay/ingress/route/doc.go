// Package route owns the choice of where an HTTP request goes: a table of rules by host, path, method, header and query,
// looked up by value. It is pure: no clock, no I/O, no memory between questions. A Table and a HostMap are immutable once
// shared, so any number of goroutines may ask them without a lock.
//
// The order in which rules that match are preferred, as Ingress (networking.k8s.io/v1) and HTTPRoute
// (gateway.networking.k8s.io/v1) define it:
//
//	host      exact, then the wildcard with the longest suffix, then any
//	path      exact, then regular expression (the longest pattern), then the longest prefix
//	method    a rule that names one
//	headers   the rule with the most
//	query     the rule with the most parameters
//	rank      the oldest object, then by namespace and name, then the rule that comes first in it
//
// Work per question is bounded by the rules and not by the request: a prefix is looked for only as deep as the deepest
// rule of the host.
package route
