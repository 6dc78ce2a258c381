// Package tunnel owns how a server reaches kubelets, pods and Services when it cannot reach them by itself: by a
// connection that the node has opened to it. (VXLAN's tunnel between nodes is overlay's affair.)
//
//	pods/exec, log, proxy ─ Kubelet, Node ─┐        ┌─ directly ──────────────────▶ node, pod, Service
//	webhooks, aggregated APIs ── Cluster ──┴▶ race ─┤
//	                                                └─ by a node: mux.Opener ─┐
//	node/tunnel ── dials out, TLS with the node's certificate, the one port ──┴─▶ mux.Carry ──▶ kubelet, pod, Service
//
// Every node keeps one connection to every server that it knows, so that a request that arrives at any server needs no
// other server to be carried. It costs some kilobytes each and nothing while nothing is carried. Which node it is, its
// certificate says and nothing else; the newest connection of a node is the one that is used.
//
// What is carried is TCP, with the caller's own TLS inside where there is any: the kubelet's certificate is verified end
// to end, whichever way is taken. What may be asked for, the node decides (node/tunnel): its own API, pods, Services.
//
// With mode Auto the direct way has a head start, and whichever connects first is taken. A node or Service that was not
// reached directly is reached by a node at once for a while, so that nobody waits again. A stranger at a node's address,
// as private networks have them, is not the node: before the direct way to a kubelet is believed, its certificate is
// checked once. A server that runs no pods has no way of its own to pods and Services, and asks a node first.
//
// For a pod its own node is asked, for a Service one with an endpoint of it; when there is none, another that is
// connected, which reaches it by the pod network.
//
// The connections also tell which nodes are alive, because nothing else does that a node cannot say of another: each has
// proved by its certificate whose it is. A node that leaves four questions unanswered, or whose connection has ended and
// not come back within a second, is away; when no other server hears it either, it is dead until it connects or answers.
//
// # Goroutines and locks
//
// Serve runs on the port's goroutine, one a connected node, and reads; a second one asks for signs of life. Run has one
// and joins nothing. A race has one a way, and waits for both.
// Tunnel.mu guards the connections and changes of verdicts; nothing but the verdicts' own lock is taken while it is held.
package tunnel
