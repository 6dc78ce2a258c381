package main

import (
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/overlay/ingress"
)

func bindTLS(f *pflag.FlagSet, t *config.TLS) {
	f.StringSliceVar(&t.CipherSuites, "tls-cipher-suites", t.CipherSuites, "what clients of the API and of this node's own API may encrypt with in TLS 1.2 (default: Go's choice); TLS 1.3 knows strong ones only. Strong: "+
		strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+". Weak: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
	f.StringVar(&t.MinVersion, "tls-min-version", t.MinVersion, "oldest version of TLS they may speak: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (default VersionTLS12)")
}

func bindPods(f *pflag.FlagSet, p *config.Pods) {
	f.StringSliceVar(&p.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", p.AllowedUnsafeSysctls,
		"sysctls that pods of this machine may set besides the safe ones: names, or prefixes that end in * (as kernel.msg*,net.core.somaxconn); a pod that sets another one fails with the reason SysctlForbidden")
	f.BoolVar(&p.SeccompDefault, "seccomp-default", p.SeccompDefault,
		"run containers that name no seccomp profile with the runtime's default one instead of unconfined; containers that run already keep what they have")
	f.Int64Var(&p.MaxPIDs, "pod-max-pids", p.MaxPIDs, "how many processes and threads a pod may have at most; -1 for no limit but the machine's")
}

func bindProxy(f *pflag.FlagSet, p *config.Proxy) {
	f.StringVar(&p.Healthz, "proxy-healthz-bind-address", p.Healthz, "address and port at which load balancers ask this node for /healthz and /livez, as of kube-proxy; 0.0.0.0 is every address, empty is none")
	f.StringVar(&p.Status, "proxy-metrics-bind-address", p.Status, "address and port at which programs of this machine ask for /proxyMode, as of kube-proxy; empty is none")
}

func bindNodeLogs(f *pflag.FlagSet, n *config.NodeLogs) {
	f.BoolVar(&n.Serve, "enable-system-log-handler", n.Serve, "show the files of --log-dir at /logs/ of the node's API to users with the right to nodes/log or nodes/proxy")
	f.BoolVar(&n.Query, "enable-system-log-query", n.Query, "answer ?query=SERVICE there from the journal of this machine, or from the service's file")
}

func bindIngress(f *pflag.FlagSet, c *config.Ingress) {
	f.BoolVar(&c.Enabled, "ingress", c.Enabled, "serve Ingresses and Gateways on this node once there are some; false labels the node "+ingress.Label+"=false, on a server no IngressClass is made either")
	f.IntVar(&c.HTTPPort, "ingress-http-port", c.HTTPPort, "port of Ingresses without TLS, and what port 80 of a Gateway means")
	f.IntVar(&c.HTTPSPort, "ingress-https-port", c.HTTPSPort, "port of Ingresses with TLS, and what port 443 of a Gateway means")
	f.IntVar(&c.MaxConnections, "ingress-max-connections", c.MaxConnections, "connections of clients at most; one address may have half of them (default 8192)")
}
