// Package lifecycle runs the parts of a process in the order in which they were started, and stops them in the reverse order,
// each only when the one above it has returned.
//
//	Start(store) ▶ Start(API) ▶ Start(leader)      Stop: leader ▶ API ▶ store
//
// A part is a function that runs until its context ends. Start makes its failure the failure of the whole; Keep starts it
// anew after a panic. The package knows no part by name.
package lifecycle
