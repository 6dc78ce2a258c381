// Command conformance runs upstream's own end-to-end cases (e2e.test, by its runner ginkgo) against a cluster of
// several hosts that it starts: a server that takes pods, and agents. Each host is a network namespace on a switch
// (package lan), with real containers. It lists the cases that did not pass.
//
// Upstream's programs and the images of the cases have to be given as directories. Cases are chosen by their full
// names, one a line of a file, or by a regular expression.
package main
