// Package route chooses the rule for an HTTP request from a table of rules by host, path, method, headers and query. It is
// pure: no clock, no I/O, no state between lookups. A Table and a HostMap are immutable once shared, so goroutines may use
// them without a lock.
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
// The cost of a lookup is bounded by the rules and not by the request: only prefixes up to the depth of the host's longest
// rule are tried.
package route
