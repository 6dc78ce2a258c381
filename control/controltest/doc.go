// Package controltest owns API servers for the tests of control's parts: a real store in a temporary directory, real
// certificates, a TLS socket on loopback, and settings of the test's own. Nothing of the product imports it.
//
// Every server is stopped, and waited for, when its test ends.
package controltest
