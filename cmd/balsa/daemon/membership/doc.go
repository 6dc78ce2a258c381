// Package membership is what a server or an agent remembers of its cluster between runs: the file member.json, and the
// settings that all machines of a cluster share. How a machine becomes a member is in daemon/server/join.go and
// daemon/agent/join.go.
package membership
