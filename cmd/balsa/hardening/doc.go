// Package hardening checks a running cluster against the controls of the CIS Kubernetes Benchmark that can be checked on a
// cluster. The result of each is pass, fail with the fix, or not applicable with the reason.
//
//	Gather (asks servers, nodes, the API, this machine's files) ──▶ Facts ──▶ Judge (pure) ──▶ Rows ──▶ Write
//
// Judge is a table: one Control a row, with the benchmark's number (version 1.11, for Kubernetes 1.29 and later; sections 1
// to 5). The k3s hardening guide's controls have the same numbers. A control is judged by how the cluster behaves, where
// behaviour can be tried without harm (a handshake with an old TLS version, a request without credentials), else by the
// settings that servers and nodes say they run with (/flagz, /configz), else by the API's objects. A control that cannot be
// checked from this machine, such as files of another one, is not applicable, and its result says where to check it.
package hardening
