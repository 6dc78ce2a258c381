// Package tunnel lets a server reach kubelets, pods and Services that it cannot connect to: through a connection that a node
// has opened to the server. (The VXLAN tunnel between nodes is in overlay.)
//
//	pods/exec, log, proxy ─ Kubelet, Node ─┐        ┌─ directly ──────────────────▶ node, pod, Service
//	webhooks, aggregated APIs ── Cluster ──┴▶ race ─┤
//	                                                └─ by a node: mux.Opener ─┐
//	node/tunnel ── dials out, TLS with the node's certificate, the one port ──┴─▶ mux.Carry ──▶ kubelet, pod, Service
//
// Each node keeps one connection to each server that it knows, so no server has to forward a request to another one. An
// idle connection costs some kilobytes. The node is identified only by its certificate. When a node connects again, the
// newest connection is used.
//
// The tunnel carries TCP, with the caller's TLS inside where the caller uses it: the kubelet's certificate is verified end
// to end both directly and through the tunnel. The node decides which targets it connects to (node/tunnel): its own API,
// pods, Services.
//
// With mode Auto the direct connection has a head start, and the first connection wins. After a direct connection to a node
// or Service has failed, the tunnel is used at once for a while, so that requests do not wait for the head start again. In
// private networks another machine may have the node's address: so the certificate of a kubelet is checked once before
// direct connections to it are trusted. A server that runs no pods cannot connect to pods and Services directly, and uses a
// node first.
//
// A pod is reached through its own node, a Service through a node with one of its endpoints. When that node is not connected,
// another connected node is used, which reaches the target over the pod network.
//
// The connections also show which nodes are alive. No node can fake this for another node, because each connection is
// authenticated by a certificate. A node is away when it leaves four pings unanswered, or when its connection has ended and
// not come back within a second. If no other server receives answers from it either, it is dead until it connects or
// answers.
//
// # Goroutines and locks
//
// Serve runs on the port's goroutine, one a connected node, and reads; a second one sends pings. Run has one
// and joins nothing. A race has one for each way, and waits for both.
// Tunnel.mu guards the connections and changes of verdicts; nothing but the verdicts' own lock is taken while it is held.
package tunnel
