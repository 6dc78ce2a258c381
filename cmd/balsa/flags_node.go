package main

import (
	"strings"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/overlay/ingress"
)

func bindTLS(f *pflag.FlagSet, t *config.TLS) {
	f.StringSliceVar(&t.CipherSuites, "tls-cipher-suites", t.CipherSuites, "cipher suites of TLS 1.2 at the API and at the kubelet's API (default: Go's choice); those of TLS 1.3 are fixed and strong. Strong: "+
		strings.Join(cliflag.PreferredTLSCipherNames(), ", ")+". Weak: "+strings.Join(cliflag.InsecureTLSCipherNames(), ", "))
	f.StringVar(&t.MinVersion, "tls-min-version", t.MinVersion, "oldest version of TLS at the API and at the kubelet's API: "+strings.Join(cliflag.TLSPossibleVersions(), ", ")+" (default VersionTLS12)")
}

func bindPods(f *pflag.FlagSet, p *config.Pods) {
	f.StringSliceVar(&p.AllowedUnsafeSysctls, "allowed-unsafe-sysctls", p.AllowedUnsafeSysctls,
		"sysctls that pods of this machine may set beside the safe ones: names, or prefixes that end in * (as kernel.msg*,net.core.somaxconn); a pod that sets another one fails with the reason SysctlForbidden")
	f.BoolVar(&p.SeccompDefault, "seccomp-default", p.SeccompDefault,
		"run containers that name no seccomp profile with the runtime's default profile instead of none; running containers are not changed")
	f.StringVar(&p.ManifestDir, "pod-manifest-path", p.ManifestDir, "directory of manifests (.yaml, .yml, .json) of static pods: this node runs them also while no server answers, and the API shows a mirror of each (default: none)")
	f.Int64Var(&p.MaxPIDs, "pod-max-pids", p.MaxPIDs, "the most processes and threads of a pod; -1 for no limit but the machine's")
}

func bindAllocation(f *pflag.FlagSet, a *config.Allocation) {
	f.StringVar(&a.CPUPolicy, "cpu-manager-policy", a.CPUPolicy, "none, or static: containers of Guaranteed pods that request whole CPUs get these for themselves")
	f.StringToStringVar(&a.CPUOptions, "cpu-manager-policy-options", a.CPUOptions, "options of the policy static: full-pcpus-only=true (whole cores only), strict-cpu-reservation=true (containers that share CPUs stay off the reserved ones)")
	f.StringVar(&a.ReservedCPUs, "reserved-cpus", a.ReservedCPUs, "CPUs for the system and the containers that share, such as 0,2-3; no container gets one for itself, and they are taken off what is allocatable")
	f.StringVar(&a.TopologyPolicy, "topology-manager-policy", a.TopologyPolicy, "how CPUs and devices of a container are aligned to NUMA nodes: none, best-effort, restricted (a pod that cannot be aligned fails with the reason TopologyAffinityError) or single-numa-node")
	f.StringVar(&a.TopologyScope, "topology-manager-scope", a.TopologyScope, "what is aligned: each container by itself, or with pod all containers of a pod to the same NUMA nodes")
}

func bindProxy(f *pflag.FlagSet, p *config.Proxy) {
	f.StringVar(&p.Healthz, "proxy-healthz-bind-address", p.Healthz, "address and port of /healthz and /livez, where load balancers check this node as they check kube-proxy; 0.0.0.0 is every address, empty is none")
	f.StringVar(&p.Status, "proxy-metrics-bind-address", p.Status, "address and port of /proxyMode, as kube-proxy serves it for programs of this machine; empty is none")
}

func bindNodeLogs(f *pflag.FlagSet, n *config.NodeLogs) {
	f.BoolVar(&n.Serve, "enable-system-log-handler", n.Serve, "serve the files of --log-dir at /logs/ of the kubelet's API, to users with rights to nodes/log or nodes/proxy")
	f.BoolVar(&n.Query, "enable-system-log-query", n.Query, "answer ?query=SERVICE at /logs/ from the journal of this machine, or from the service's log file")
}

func bindIngress(f *pflag.FlagSet, c *config.Ingress) {
	f.BoolVar(&c.Enabled, "ingress", c.Enabled, "serve Ingresses and Gateways on this node, once there are some; with false the node gets the label "+ingress.Label+"=false, and a server creates no IngressClass")
	f.IntVar(&c.HTTPPort, "ingress-http-port", c.HTTPPort, "port of Ingresses without TLS; it also serves port 80 of Gateways")
	f.IntVar(&c.HTTPSPort, "ingress-https-port", c.HTTPSPort, "port of Ingresses with TLS; it also serves port 443 of Gateways")
	f.IntVar(&c.MaxConnections, "ingress-max-connections", c.MaxConnections, "the most connections of clients, of which one address may have half (default 8192)")
}
