// Package daemon holds what assembles and runs a server or an agent; it has no code itself. The commands fill a configuration
// from flags and call Run:
//
//	cmd/balsa (flags) ──▶ config.Server ──▶ server.Run      config.Agent ──▶ agent.Run
//
//	server      the order in which a server's parts start: certificates, port, store, gossip, API, leader, node
//	agent       the same of a machine that only runs pods
//	nodesetup   what both start for pods: runtime, network, node agent, kubelet API
//	config      what they can be told, and where their files are
//	membership  what they remember of the cluster between runs
//	lifecycle   ordered start and stop
//	process     the process itself: log, priority, memory, core dumps, panics, milestones
//	kubeconfig, signing, wallclock, logdedup   one task each
//
// Nothing below this folder knows cobra or flags; arch_test.go keeps that.
package daemon
