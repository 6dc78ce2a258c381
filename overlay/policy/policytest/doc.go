// Package policytest has the shared parts of network policy tests: randomly generated worlds of namespaces, pods and
// policies, and an oracle that says which connections the policies of a world allow. The oracle follows the API
// documentation, one flow at a time, and shares no code with the implementation under test.
package policytest
