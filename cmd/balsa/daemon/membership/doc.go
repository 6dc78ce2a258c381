// Package membership keeps what a server or an agent has to know of its cluster at its next start: its identity, the
// cluster's settings, the addresses of the servers. The file is member.json in the server's or the agent's directory.
// Agree holds a machine's flags against the cluster's settings. How a machine joins is in daemon/server/join.go and
// daemon/agent/join.go.
package membership
