package main

import (
	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/leader/horizontalpodautoscaler"
	"github.com/balsahq/balsa/overlay/ingress/gatewayapi"
)

// bindPaths registers the flags by which every command finds the cluster of this machine.
func bindPaths(f *pflag.FlagSet, c *config.Paths) {
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory of all data that is kept; also $BALSA_DATA_DIR")
	f.StringVar(&c.RunDir, "run-dir", c.RunDir, "directory of sockets and of the process ID; also $BALSA_RUN_DIR")
}

// bindNode registers the flags that a server and an agent have in common.
func bindNode(f *pflag.FlagSet, c *config.Node) {
	f.StringVar(&c.NodeName, "node-name", c.NodeName, "name of this machine's Node object")
	f.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address at which other nodes reach this one, or one address of each family with a comma between (default: the source address of packets to the default route and, in a cluster of both families, one of the other family)")
	f.StringToStringVar(&c.NodeLabels, "node-label", c.NodeLabels, "labels of this machine's Node object, as key=value")
	f.IntVar(&c.KubeletPort, "kubelet-port", c.KubeletPort, "port of the kubelet's API of this node (logs, exec, metrics)")
	f.DurationVar(&c.MetricResolution, "metric-resolution", c.MetricResolution, "pause between two measurements of the resource usage of this node and its pods, for kubectl top and the HorizontalPodAutoscaler; 1s to 30s")
	f.BoolVar(&c.DisableLocalStorage, "disable-local-storage", c.DisableLocalStorage, "leave out the StorageClass balsa-local and its driver: this server provisions no local volumes, and on this node none are made or mounted; those that exist stay")
	f.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "the most pods that run on this node")
	f.StringVar(&c.RuntimeEndpoint, "container-runtime-endpoint", c.RuntimeEndpoint, "CRI socket (unix:///…) of another container runtime, instead of the containerd inside this binary")
	f.StringToStringVar(&c.RuntimeHandlers, "runtime-handler", c.RuntimeHandlers, "further handlers of the containerd inside this binary, for RuntimeClasses, as name=path of an OCI runtime (/usr/bin/crun) or of a shim (…/containerd-shim-NAME-VERSION); may be given several times. Installed crun, youki and nvidia-container-runtime, and shims such as those of gVisor (runsc), Kata and WebAssembly, are handlers of their own names without it")
	f.StringVar(&c.ContainerdConfigDir, "containerd-config-dir", c.ContainerdConfigDir, "directory with further configuration (*.toml) for the containerd inside this binary, read when this process starts")
	f.StringVar(&c.LogDir, "log-dir", c.LogDir, "directory of the logs of containers, in pods/ and containers/ below it")
	f.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "control group of all pods; two installations on one machine need different ones")
	bindPods(f, &c.Pods)
	bindAllocation(f, &c.Allocation)
	bindProtection(f, &c.Protection)
	bindProxy(f, &c.Proxy)
	bindNodeLogs(f, &c.Logs)
	f.StringVar(&c.CloudProvider, "cloud-provider", c.CloudProvider, "\"external\" keeps pods away from this machine until a cloud controller has initialized its Node: the servers' own or, with their --disable-cloud-controller, one outside")
	bindIngress(f, &c.Ingress)
	bindTLS(f, &c.TLS)
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "which lines are logged: debug, info, warn or error, and other levels for folders of the source, as info,leader/scheduler=debug; \"kubernetes\" are the libraries. `balsa logs level` changes it while the process runs")
	f.StringVar(&c.ProfileAddress, "profile-address", c.ProfileAddress, "loopback address at which Go's profiles (net/http/pprof) are served, such as 127.0.0.1:6060 (default: none)")
	f.StringVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "address of the cluster's DNS, inside the service CIDR")
	f.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	f.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "network of Services. For both families give a prefix of each, as 10.96.0.0/16,fd00:96::/108; Services that name no family get an address of the first")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "network of pods, of which each node gets a part. For both families give a prefix of each, as 10.244.0.0/16,fd00:244::/48")
	f.StringVar(&c.OverlayMode, "overlay-mode", c.OverlayMode, "how packets reach pods of other nodes: host-gw (by a route; the nodes share a subnet), vxlan (in UDP packets, by the kernel), auto (host-gw where possible, else vxlan), or udp (in UDP packets, by this process, where the kernel can do neither); the same on all nodes")
	f.IntVar(&c.VXLANPort, "vxlan-port", c.VXLANPort, "UDP port of VXLAN between nodes; the same on all nodes")
	f.BoolVar(&c.VXLANOffload, "vxlan-offload", c.VXLANOffload, "let this machine's network card compute checksums and segments of packets in VXLAN: several times the throughput, but with some cards and kernels packets are lost (`balsa net check` shows it)")
	f.StringVar(&c.Encryption, "overlay-encryption", c.Encryption, "encryption of packets to other nodes' pods: none, or wireguard, with a key that each node makes itself; the same on all nodes")
	f.IntVar(&c.WireGuardPort, "wireguard-port", c.WireGuardPort, "UDP port between nodes for --overlay-encryption wireguard; the same on all nodes")
	f.IntVar(&c.UDPPort, "udp-port", c.UDPPort, "UDP port between nodes for --overlay-mode udp; the same on all nodes")
	f.StringVar(&c.NetworkPlugin, "network-plugin", c.NetworkPlugin, "pod network: balsa, or cni for another network plugin, which puts its configuration into agent/cni/net.d of the data directory and its programs into bin; Balsa serves Services and DNS in either case")
}

// bindJoin registers the flags by which a machine joins a cluster.
func bindJoin(f *pflag.FlagSet, c *config.Node) {
	f.StringSliceVar(&c.Join, "join", c.Join, "servers of the cluster to join, as host or host:port; needed at the first start")
	f.StringVar(&c.Token, "token", c.Token, "join token, printed by `balsa token create`")
	f.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file with the join token, instead of --token, which the list of processes shows")
}

// bindServer registers the flags of a server, beside those of bindNode.
func bindServer(f *pflag.FlagSet, c *config.Server) {
	bindJoin(f, &c.Node)
	f.IntVar(&c.GossipPort, "gossip-port", c.GossipPort, "UDP and TCP port of the gossip between servers; the same on all servers")
	bindSnapshots(f, &c.Snapshots)
	f.StringVar(&c.RaftLog, "raft-log", c.RaftLog, "files that hold Raft's log, chosen when this server's data directory begins and kept: wal (segments; damage anywhere is found at the start) or boltdb (one bbolt file; damage that hides the newest entries or a stored vote can stay unfound) (default: what the directory began with, else wal)")
	f.BoolVar(&c.GatewayAPI, "gateway-api", c.GatewayAPI, "install the Gateway API's definitions ("+gatewayapi.Version+") and the GatewayClass "+gatewayapi.Class+" where they are missing; upstream's own definitions, applied with kubectl, work too")
	f.StringVar(&c.NodeTunnel, "node-tunnel", c.NodeTunnel, "when this server uses the connections that nodes keep to it, to reach nodes, pods and Services: auto (when a direct connection fails or is slow), always, or never (they only show that nodes are alive)")
	f.StringVar(&c.LoadBalancerPool, "load-balancer-pool", c.LoadBalancerPool, "addresses for Services of type LoadBalancer, as a list such as 10.0.0.200-10.0.0.220,192.168.7.0/28,2001:db8::/120; the key pools of the ConfigMap kube-system/balsa-load-balancer overrides it, and may change at any time")
	f.BoolVar(&c.DisableCloud, "disable-cloud-controller", c.DisableCloud, "leave nodes with --cloud-provider=external to a cloud controller manager outside")
	bindAPI(f, &c.API)
	f.StringVar(&c.SchedulerConfig, "scheduler-config", c.SchedulerConfig, "file that says how pods are placed: a KubeSchedulerConfiguration (kubescheduler.config.k8s.io/v1) or a Policy (v1); settings without meaning here are refused; the same on all servers")
	bindAutoscaling(f, &c.Autoscaling)
	f.Int64Var(&c.UnreachableTolerationSeconds, "unreachable-toleration-seconds", c.UnreachableTolerationSeconds,
		"how long a pod without tolerations of its own stays bound to a node that is gone, before it is replaced on another node")
	f.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address at which the API listens")
	f.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "address at which clients reach the API (default: the node's)")
	f.IntVar(&c.Port, "port", c.Port, "port of the API")
	f.StringSliceVar(&c.TLSSANs, "tls-san", c.TLSSANs, "further names and addresses in the API's certificate")
	f.BoolVar(&c.DisableAgent, "disable-agent", c.DisableAgent, "run only the control plane: no pods run on this machine")
}

// bindAutoscaling registers the flags of kube-controller-manager with these names.
func bindAutoscaling(f *pflag.FlagSet, c *horizontalpodautoscaler.Config) {
	const prefix = "horizontal-pod-autoscaler-"
	f.DurationVar(&c.SyncPeriod, prefix+"sync-period", c.SyncPeriod, "how often HorizontalPodAutoscalers look at their metrics; on all servers the same, as the other flags of its kind")
	f.DurationVar(&c.DownscaleStabilization, prefix+"downscale-stabilization", c.DownscaleStabilization, "how long fewer replicas must have been enough before a target is scaled down, for autoscalers that do not say so themselves")
	f.Float64Var(&c.Tolerance, prefix+"tolerance", c.Tolerance, "how far the ratio of a metric to its target may be from 1 without a change, for autoscalers that do not say so themselves")
	f.DurationVar(&c.CPUInitializationPeriod, prefix+"cpu-initialization-period", c.CPUInitializationPeriod, "how long after its start a pod's processor time counts only while the pod is ready, and measured after it became so")
	f.DurationVar(&c.InitialReadinessDelay, prefix+"initial-readiness-delay", c.InitialReadinessDelay, "how long after its start a pod that becomes unready counts as one that never was ready")
}

func bindSnapshots(f *pflag.FlagSet, s *config.Snapshots) {
	f.DurationVar(&s.Every, "snapshot-schedule", s.Every, "pause between two snapshots of the cluster, which the leader saves; 0 for none")
	f.IntVar(&s.Keep, "snapshot-retention", s.Keep, "how many scheduled snapshots a server keeps")
	f.StringVar(&s.Dir, "snapshot-dir", s.Dir, "directory of scheduled snapshots (default: snapshots/ in the data directory)")
}

func bindCertificates(f *pflag.FlagSet, c *config.Certificates) {
	f.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "file with certificate authorities that the API trusts for client certificates, beside the cluster's own; read again when it changes")
	f.StringVar(&c.SigningCert, "cluster-signing-cert-file", c.SigningCert, "certificate authority, instead of the cluster's own, that signs client certificates which are requested at the API; the same on all servers, and in --client-ca-file; may be replaced at any time")
	f.StringVar(&c.SigningKey, "cluster-signing-key-file", c.SigningKey, "key of --cluster-signing-cert-file")
	f.DurationVar(&c.SigningLife, "cluster-signing-duration", c.SigningLife, "longest validity of certificates that are requested at the API")
}

// flagValues returns the settings that a server runs with by the names of its flags,
// wherever they come from: the command line, the file, the cluster or the defaults.
// The join token is left out, because /flagz shows the result.
func flagValues(c *config.Server) map[string]string {
	f, own := pflag.NewFlagSet("server", pflag.ContinueOnError), *c
	own.Token = ""
	bindPaths(f, &own.Paths)
	bindNode(f, &own.Node)
	bindServer(f, &own)
	out := map[string]string{}
	f.VisitAll(func(flag *pflag.Flag) { out[flag.Name] = flag.Value.String() })
	return out
}
