// Package host owns machines for tests: each Host is a network namespace with
// an address of its own, directories of its own and the balsa binary, on which
// a test starts, kills and inspects a real cluster.
//
// Nothing here imports the product: what a test knows, it knows from outside.
// A Host makes everything it needs and Close takes everything away again.
package host
