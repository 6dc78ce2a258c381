package hardening

import (
	"fmt"
	"strings"
)

// kubelet returns sections 4.2 and 4.3.
func kubelet() []Control {
	return []Control{
		{"4.2.1", "A node's API refuses requests without credentials", probed("requests without credentials were refused", func(n *Node) string {
			if len(n.Anonymous) > 0 {
				return "answered " + strings.Join(n.Anonymous, ", ")
			}
			return ""
		}), "run this project's own build on that node"},
		{"4.2.2", "A node's API lets the servers authorize requests", nodes("by webhook", equal("Webhook", "authorization", "mode")), "run this project's own build on that node"},
		{"4.2.3", "A node's API verifies clients' certificates", nodes("by the cluster's CA", func(n *Node) string {
			if v, _ := n.setting("authentication", "x509", "clientCAFile").(string); v == "" {
				return "authentication.x509.clientCAFile is not set"
			}
			return ""
		}), "run this project's own build on that node"},
		{"4.2.4", "There is no read-only port", probed("port 10255 does not answer", func(n *Node) string {
			if n.ReadOnlyPort {
				return "port 10255 answers"
			}
			return ""
		}), "stop the program that listens on port 10255 of that node"},
		{"4.2.5", "Idle streams end", nodes("bounded", func(n *Node) string {
			if v, _ := n.setting("streamingConnectionIdleTimeout").(string); v == "" || v == "0" || v == "0s" {
				return "streamingConnectionIdleTimeout is " + v
			}
			return ""
		}), "run this project's own build on that node"},
		never("4.2.6", "The node creates its own iptables chains", "the node uses nftables, in its own tables, which it restores after changes"),
		never("4.2.7", "The node's name is not overridden", "a node's certificate is bound to the name with which it joined"),
		never("4.2.8", "Events are bounded", "by API priority and fairness at the servers, and by the node's own limit"),
		never("4.2.9", "The node has a certificate of the cluster", "always; it gets one when it joins"),
		{"4.2.10", "The node's certificates are renewed (also 4.2.11)", nodes("on", equal(true, "rotateCertificates")), "run this project's own build on that node"},
		{"4.2.12", "Only strong ciphers, TLS 1.2 or newer", probed("older versions and weak ciphers were refused", func(n *Node) string { return weakTLS(n.OldTLS, n.WeakCiphers) }), "remove weak suites from --tls-cipher-suites, and set --tls-min-version to VersionTLS12 or newer"},
		{"4.2.13", "Pods cannot use up the node's process ids", nodes("bounded", func(n *Node) string {
			if v, ok := n.setting("podPidsLimit").(float64); !ok || v <= 0 {
				return "podPidsLimit is not set"
			}
			return ""
		}), "set --pod-max-pids on that node"},
		{"4.2.14", "Containers have a seccomp profile by default", nodes("on", equal(true, "seccompDefault")), "set --seccomp-default on that node"},
		never("4.3.1", "kube-proxy's metrics listen on loopback", "there is no kube-proxy, and the node's health port shows no metrics"),
	}
}

// nodes judges every node by its settings. A node whose settings could not be read fails.
func nodes(good string, bad func(*Node) string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		return all(f.Nodes, notApplicable("the cluster has no node"), good, func(n Node) string {
			why := n.Err
			if why == "" {
				why = bad(&n)
			}
			if why == "" {
				return ""
			}
			return n.Name + ": " + why
		})
	}
}

// probed judges the nodes whose ports this machine could reach.
func probed(good string, bad func(*Node) string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		var reached []Node
		for _, n := range f.Nodes {
			if n.Reached {
				reached = append(reached, n)
			}
		}
		return all(reached, notApplicable("no node's port could be reached from this machine: run this on a server or node"), fmt.Sprintf("%s (%d of %d nodes reached from this machine)", good, len(reached), len(f.Nodes)),
			func(n Node) string {
				if why := bad(&n); why != "" {
					return n.Name + ": " + why
				}
				return ""
			})
	}
}

func equal(want any, path ...string) func(*Node) string {
	return func(n *Node) string {
		if have := n.setting(path...); have != want {
			return fmt.Sprintf("%s is %v", strings.Join(path, "."), have)
		}
		return ""
	}
}
