package hardening

// controllers is sections 1.3 and 1.4: controller manager and scheduler, which run inside the servers.
func controllers() []Control {
	return []Control{
		never("1.3.1", "Ended pods are removed", "controllers keep 12,500 ended pods at most, as upstream's"),
		{"1.3.2", "No profiles of controllers and scheduler (also 1.4.1)", servers("only where --profile-address is set, on loopback", func(s *Server) string {
			if v, _ := s.flag("profile-address"); v != "" {
				return "--profile-address is " + v
			}
			return ""
		}), "take --profile-address away when you have measured"},
		never("1.3.3", "Each controller has credentials of its own", "always: each acts as the service account of its name, with its rights"),
		never("1.3.4", "Key and root CA of service accounts (also 1.3.5)", "servers share them; every namespace has kube-root-ca.crt; `balsa certificates rotate` replaces them"),
		never("1.3.6", "Kubelets' server certificates are renewed", "each node renews its certificates from the third quarter of their life on"),
		never("1.3.7", "Controllers and scheduler listen on loopback (also 1.4.2)", "they do not listen"),
	}
}

// store is section 2, which the benchmark calls etcd: the servers' own store.
func store() []Control {
	return []Control{
		never("2.1", "Clients of the store use TLS with certificates (also 2.2, 2.3)", "the store has no port of its own; the etcd API on the API's port wants a client certificate of the group for it"),
		never("2.4", "Peers use mutual TLS (also 2.5, 2.6)", "always: servers know each other by certificates of the cluster's CA, with TLS 1.3"),
		never("2.7", "The store has a CA of its own", "peers' certificates carry a name that is given to servers alone, and no request for a certificate can ask for it"),
	}
}

// credentials is section 3.
func credentials() []Control {
	return []Control{
		never("3.1.1", "People do not use client certificates", "the administrator's kubeconfig is one and is for emergencies; give people --oidc-issuer-url or --authentication-config"),
		never("3.1.2", "People do not use tokens of service accounts", "not to be seen from the cluster; see 3.1.1"),
		never("3.1.3", "People do not use join tokens", "join tokens let a machine join and nothing else, and expire"),
		{"3.2.1", "There is an audit policy", servers("the built-in policy or a file", func(s *Server) string {
			return unrecorded(s)
		}), "take --audit-log-path=none away from each server"},
		{"3.2.2", "The audit policy covers what matters", servers("the built-in policy: who did what to every object, without Secrets' content", func(s *Server) string { return "" }), ""},
	}
}
