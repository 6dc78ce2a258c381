package hardening

// controllers returns sections 1.3 and 1.4: the controller manager and the scheduler, which run inside the servers.
func controllers() []Control {
	return []Control{
		never("1.3.1", "Ended pods are removed", "controllers keep at most 12,500 ended pods, as upstream's do"),
		{"1.3.2", "No profiles of controllers and scheduler (also 1.4.1)", servers("only where --profile-address is set, on loopback", func(s *Server) string {
			if v, _ := s.flag("profile-address"); v != "" {
				return "--profile-address is " + v
			}
			return ""
		}), "remove --profile-address after measuring"},
		never("1.3.3", "Each controller has credentials of its own", "always: each acts as the service account of its name, with that account's rights"),
		never("1.3.4", "Key and root CA of service accounts (also 1.3.5)", "servers share them; every namespace has kube-root-ca.crt; `balsa certificates rotate` replaces them"),
		never("1.3.6", "Kubelets' server certificates are renewed", "each node renews its certificates after three quarters of their life"),
		never("1.3.7", "Controllers and scheduler listen on loopback (also 1.4.2)", "they do not listen"),
	}
}

// store returns section 2, which the benchmark calls etcd: the servers' own store.
func store() []Control {
	return []Control{
		never("2.1", "Clients of the store use TLS with certificates (also 2.2, 2.3)", "the store has no port; the etcd API on the API's port requires a client certificate with the group for it"),
		never("2.4", "Peers use mutual TLS (also 2.5, 2.6)", "always: servers authenticate each other with certificates of the cluster's CA, by TLS 1.3"),
		never("2.7", "The store has a CA of its own", "peers' certificates have a name that only servers get, and that no certificate request may contain"),
	}
}

// credentials returns section 3.
func credentials() []Control {
	return []Control{
		never("3.1.1", "People do not use client certificates", "the administrator's kubeconfig has one, for emergencies; give people --oidc-issuer-url or --authentication-config"),
		never("3.1.2", "People do not use tokens of service accounts", "this cannot be seen from the cluster; see 3.1.1"),
		never("3.1.3", "People do not use join tokens", "join tokens only let a machine join, and expire"),
		{"3.2.1", "There is an audit policy", servers("the built-in policy or a file", func(s *Server) string {
			return unrecorded(s)
		}), "remove --audit-log-path=none from each server"},
		{"3.2.2", "The audit policy covers what matters", servers("the built-in policy: the metadata of every write, without the content of Secrets", func(s *Server) string { return "" }), ""},
	}
}
