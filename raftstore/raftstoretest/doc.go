// Package raftstoretest is a disk in memory for tests of the store: it is slow, full, or torn by a crash, as the test says. It keeps
// Raft's log and snapshots over several runs of a store.
package raftstoretest
