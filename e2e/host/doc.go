// Package host owns machines for tests. A Host is a network namespace with its own address, its own directories and the
// balsa binary. A test starts, kills and inspects a real cluster on it.
//
// The package does not import the product: tests see it only from outside. A Host makes everything it needs, and Close
// removes everything.
package host
