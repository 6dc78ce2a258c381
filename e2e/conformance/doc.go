// Command conformance runs upstream's own end-to-end cases (e2e.test, by its
// runner ginkgo) against a cluster of several hosts that it makes: a server that
// takes pods, and agents, each a network namespace on a switch (package lan), with
// real containers. It says which cases did not pass.
//
// Upstream's programs and the images that the cases name come from outside: give
// their directories. A case is chosen by its full name, one a line of a file, or
// by a regular expression.
package main
