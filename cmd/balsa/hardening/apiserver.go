package hardening

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// apiServer returns section 1.2.
func apiServer() []Control {
	controls := []Control{
		{"1.2.1", "Requests without credentials get only health and discovery documents", servers("nothing else was answered", func(s *Server) string {
			if len(s.Anonymous) > 0 {
				return "answered " + strings.Join(s.Anonymous, ", ")
			}
			return ""
		}), "remove --anonymous-auth from each server, or set it to false"},
		{"1.2.2", "No file of bearer tokens", unset("token-auth-file", "basic-auth-file"), "remove --token-auth-file and --basic-auth-file from each server"},
		{"1.2.3", "Services cannot take addresses of others (DenyServiceExternalIPs)", optional("DenyServiceExternalIPs",
			"not set, and not needed for the cluster's own safety: external IPs never capture an address of a node, of pods or of Services. Set --enable-admission-plugins=DenyServiceExternalIPs where tenants are not trusted"), ""},
		never("1.2.4", "Clients' certificates towards kubelets", "servers always use a certificate of the cluster towards nodes; no setting changes this"),
		never("1.2.5", "Kubelets' certificates are verified", "always, against the cluster's CA and the node's name, on every way to a node"),
		{"1.2.6", "Not every request is allowed (AlwaysAllow)", modes(func(m []string) string {
			if slices.Contains(m, "AlwaysAllow") {
				return "AlwaysAllow is among " + strings.Join(m, ",")
			}
			return ""
		}), "remove AlwaysAllow from --authorization-mode"},
		{"1.2.7", "Nodes read only their own objects (Node)", modes(needsMode("Node")), "add Node to --authorization-mode"},
		{"1.2.8", "Rights come from roles (RBAC)", modes(needsMode("RBAC")), "add RBAC to --authorization-mode"},
		{"1.2.9", "Events are limited (EventRateLimit)", optional("EventRateLimit",
			"not set: API priority and fairness limits each client. Set --enable-admission-plugins=EventRateLimit with --admission-control-config-file for limits of events"), ""},
		never("1.2.10", "The plug-in AlwaysAdmit is not set", "there is no such plug-in"),
		{"1.2.11", "Images are pulled with the pod's own credentials (AlwaysPullImages)", optional("AlwaysPullImages",
			"not set: pods could not use images imported without a registry. Set --enable-admission-plugins=AlwaysPullImages where tenants share nodes and images are private"), ""},
	}
	for _, p := range []struct{ id, plugin string }{{"1.2.12", "ServiceAccount"}, {"1.2.13", "NamespaceLifecycle"}, {"1.2.14", "NodeRestriction"}} {
		controls = append(controls, Control{p.id, "The plug-in " + p.plugin + " is on", servers("not disabled", func(s *Server) string {
			if slices.Contains(s.list("disable-admission-plugins"), p.plugin) {
				return "disabled"
			}
			return ""
		}), "remove " + p.plugin + " from --disable-admission-plugins"})
	}
	return append(controls,
		Control{"1.2.15", "No profiles on the API's port", servers("/debug/pprof is not served", func(s *Server) string {
			if s.Profiles {
				return "/debug/pprof answers"
			}
			return ""
		}), "run this project's own build"},
		Control{"1.2.16", "Requests are recorded (audit log)", servers("recorded", func(s *Server) string {
			return unrecorded(s)
		}), "remove --audit-log-path=none from each server"},
		Control{"1.2.17", "Audit logs are kept 30 days", atLeast("audit-log-maxage", 30), "set --audit-log-maxage=30"},
		Control{"1.2.18", "Ten audit logs are kept", atLeast("audit-log-maxbackup", 10), "set --audit-log-maxbackup=10"},
		Control{"1.2.19", "Audit logs are rotated at 100 MB", atLeast("audit-log-maxsize", 100), "set --audit-log-maxsize=100"},
		Control{"1.2.20", "Requests end after a while", servers("bounded", func(s *Server) string {
			v, _ := s.flag("request-timeout")
			if d, err := time.ParseDuration(v); err != nil || d <= 0 || d > 5*time.Minute {
				return "--request-timeout is " + v
			}
			return ""
		}), "set --request-timeout to 5m or less"},
		never("1.2.21", "Tokens of accounts that are gone are refused", "always: a token's account, pod, node and Secret are looked up; no setting changes this"),
		never("1.2.22", "Service-account keys are set", "servers create, share and verify them themselves"),
		never("1.2.23", "The connection to etcd has certificates", "there is no etcd; servers use mutual TLS between each other (section 2)"),
		Control{"1.2.24", "The API is served with TLS", servers("it answered by TLS with a certificate of the cluster's CA", func(*Server) string { return "" }), ""},
		never("1.2.26", "The CA of etcd is set", "there is no etcd"),
		Control{"1.2.27", "Objects are encrypted at rest", encrypted("secrets"), "balsa secrets config prints a configuration with a new key; set --encryption-provider-config to it on each server, then balsa secrets reencrypt"},
		Control{"1.2.29", "Only strong ciphers, TLS 1.2 or newer", servers("older versions and weak ciphers were refused", func(s *Server) string { return weakTLS(s.OldTLS, s.WeakCiphers) }), "remove weak suites from --tls-cipher-suites, and set --tls-min-version to VersionTLS12 or newer"},
	)
}

// unrecorded returns a text for a server without an audit log. By default a server writes one in its data directory.
func unrecorded(s *Server) string {
	path, _ := s.flag("audit-log-path")
	if hook, _ := s.flag("audit-webhook-config-file"); path == "none" && hook == "" {
		return "no audit log"
	}
	return ""
}

// servers judges every server by bad. A server whose settings could not be read fails.
func servers(good string, bad func(*Server) string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		return all(f.Servers, fail("no server was found"), good, func(s Server) string {
			why := s.Err
			if why == "" {
				why = bad(&s)
			}
			if why == "" {
				return ""
			}
			return s.Name + ": " + why
		})
	}
}

func unset(flags ...string) func(*Facts) Verdict {
	return servers("not set", func(s *Server) string {
		for _, name := range flags {
			if v, _ := s.flag(name); v != "" {
				return "--" + name + " is set"
			}
		}
		return ""
	})
}

func atLeast(flag string, least int) func(*Facts) Verdict {
	return servers(fmt.Sprintf("%d or more, or without a bound", least), func(s *Server) string {
		v, _ := s.flag(flag)
		n, err := strconv.Atoi(v)
		if err != nil || n != 0 && n < least {
			return "--" + flag + " is " + v
		}
		return ""
	})
}

// modes judges the authorization modes. It passes with --authorization-config: the administrator's file is not read here.
func modes(bad func([]string) string) func(*Facts) Verdict {
	return servers("by the servers' settings", func(s *Server) string {
		if file, _ := s.flag("authorization-config"); file != "" {
			return ""
		}
		m := s.list("authorization-mode")
		if len(m) == 0 {
			m = []string{"Node", "RBAC"}
		}
		return bad(m)
	})
}

func needsMode(mode string) func([]string) string {
	return func(m []string) string {
		if slices.Contains(m, mode) {
			return ""
		}
		return mode + " is not among " + strings.Join(m, ",")
	}
}

// optional judges an admission plug-in that the benchmark leaves to the administrator: it passes when every server has it, and
// is else not applicable.
func optional(plugin, why string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		for i := range f.Servers {
			if !slices.Contains(f.Servers[i].list("enable-admission-plugins"), plugin) {
				return notApplicable("a choice: %s", why)
			}
		}
		return pass("on")
	}
}

func encrypted(resources ...string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		if f.EncryptionErr != "" {
			return fail("%s", f.EncryptionErr)
		}
		return all(resources, pass(""), strings.Join(resources, ", "), func(r string) string {
			if done, stored := f.Encrypted[r]; stored && !done {
				return r + " are stored unencrypted"
			}
			return ""
		})
	}
}

func weakTLS(old string, ciphers []string) string {
	if old != "" {
		return "accepts " + old
	}
	if len(ciphers) > 0 {
		return "accepts " + strings.Join(ciphers, ", ")
	}
	return ""
}
