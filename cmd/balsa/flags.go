package main

import (
	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/leader/horizontalpodautoscaler"
	"github.com/balsahq/balsa/overlay/ingress/gatewayapi"
)

// bindPaths registers the flags that every command needs to find a cluster.
func bindPaths(f *pflag.FlagSet, c *config.Paths) {
	f.StringVar(&c.DataDir, "data-dir", c.DataDir, "directory for everything that is kept; also $BALSA_DATA_DIR")
	f.StringVar(&c.RunDir, "run-dir", c.RunDir, "directory for sockets and process ids; also $BALSA_RUN_DIR")
}

// bindNode registers what both a server and an agent can be told.
func bindNode(f *pflag.FlagSet, c *config.Node) {
	f.StringVar(&c.NodeName, "node-name", c.NodeName, "name of this machine's Node object")
	f.StringVar(&c.NodeIP, "node-ip", c.NodeIP, "address other nodes reach this one at; with one of the other family after a comma the Node has both (default: the one towards the default route and, in a cluster of both families, the one of the other family beside it)")
	f.StringToStringVar(&c.NodeLabels, "node-label", c.NodeLabels, "labels for this machine's Node object, as key=value")
	f.IntVar(&c.KubeletPort, "kubelet-port", c.KubeletPort, "port of the node's own API (logs, exec, metrics)")
	f.DurationVar(&c.MetricResolution, "metric-resolution", c.MetricResolution, "how often this node measures what it and its pods use, for kubectl top and the HorizontalPodAutoscaler; 1s to 30s")
	f.BoolVar(&c.DisableLocalStorage, "disable-local-storage", c.DisableLocalStorage, "leave out the StorageClass balsa-local and its driver: this server provisions no local volumes, and on this node none are made or mounted; those that exist stay")
	f.IntVar(&c.MaxPods, "max-pods", c.MaxPods, "how many pods this node takes at most")
	f.StringVar(&c.RuntimeEndpoint, "container-runtime-endpoint", c.RuntimeEndpoint, "use this CRI socket (unix:///…) instead of the containerd inside this binary")
	f.StringVar(&c.LogDir, "log-dir", c.LogDir, "directory for the logs of containers, in its pods/ and containers/")
	f.StringVar(&c.CgroupRoot, "cgroup-root", c.CgroupRoot, "control group under which pods run; one installation, one group")
	bindPods(f, &c.Pods)
	bindProxy(f, &c.Proxy)
	bindNodeLogs(f, &c.Logs)
	f.StringVar(&c.CloudProvider, "cloud-provider", c.CloudProvider, "\"external\" registers this machine's Node so that no pods come before a cloud controller has initialized it: the one of the servers or, with --disable-cloud-controller there, one outside")
	bindIngress(f, &c.Ingress)
	bindTLS(f, &c.TLS)
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	f.StringVar(&c.ProfileAddress, "profile-address", c.ProfileAddress, "serve Go's profiles (net/http/pprof) on this loopback address, such as 127.0.0.1:6060")
	f.StringVar(&c.ClusterDNS, "cluster-dns", c.ClusterDNS, "address of the cluster's DNS; inside the service CIDR")
	f.StringVar(&c.ClusterDomain, "cluster-domain", c.ClusterDomain, "DNS domain of the cluster")
	f.StringVar(&c.ServiceCIDR, "service-cidr", c.ServiceCIDR, "addresses of Services. For Services of both families give a prefix of each, as 10.96.0.0/16,fd00:96::/108; the first is that of Services that ask for none")
	f.StringVar(&c.ClusterCIDR, "cluster-cidr", c.ClusterCIDR, "addresses of pods; each node gets a part. For pods of both families give a prefix of each, as 10.244.0.0/16,fd00:244::/48")
	f.StringVar(&c.OverlayMode, "overlay-mode", c.OverlayMode, "how pods of other nodes are reached: host-gw (by a route; the nodes share a subnet), vxlan (in UDP packets), auto (host-gw where possible, else vxlan), or udp (in UDP packets by this process, where neither works); on all nodes the same")
	f.IntVar(&c.VXLANPort, "vxlan-port", c.VXLANPort, "UDP port of VXLAN between nodes; on all nodes the same")
	f.BoolVar(&c.VXLANOffload, "vxlan-offload", c.VXLANOffload, "leave the checksums and the segmentation of packets in VXLAN to this machine's network card: several times the throughput, but some cards and kernels get it wrong, and packets are lost (see `balsa net check`)")
	f.StringVar(&c.Encryption, "overlay-encryption", c.Encryption, "what packets to other nodes' pods are encrypted with: none, or wireguard, with a key that each node makes; on all nodes the same")
	f.IntVar(&c.WireGuardPort, "wireguard-port", c.WireGuardPort, "UDP port between nodes of --overlay-encryption wireguard; on all nodes the same")
	f.IntVar(&c.UDPPort, "udp-port", c.UDPPort, "UDP port between nodes of --overlay-mode udp; on all nodes the same")
	f.StringVar(&c.NetworkPlugin, "network-plugin", c.NetworkPlugin, "who attaches pods and carries their packets: balsa, or cni for a plugin of yours, which puts its configuration into agent/cni/net.d of the data directory and its programs into bin; Services and DNS stay Balsa's")
}

// bindJoin registers the flags by which a machine becomes a member.
func bindJoin(f *pflag.FlagSet, c *config.Node) {
	f.StringSliceVar(&c.Join, "join", c.Join, "servers of the cluster to become a member of, as host or host:port; needed once")
	f.StringVar(&c.Token, "token", c.Token, "join token, from `balsa token create`")
	f.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file with the join token, which keeps it out of the list of processes")
}

// bindServer registers what only a server can be told.
func bindServer(f *pflag.FlagSet, c *config.Server) {
	bindJoin(f, &c.Node)
	f.IntVar(&c.GossipPort, "gossip-port", c.GossipPort, "UDP and TCP port at which servers hear of each other; the same on all servers")
	bindSnapshots(f, &c.Snapshots)
	f.StringVar(&c.RaftLog, "raft-log", c.RaftLog, "files that hold Raft's log, chosen when this server's data directory begins and kept: wal (segments; damage anywhere is found at the start) or boltdb (one bbolt file; damage that hides the newest entries or a stored vote can stay unfound) (default: what the directory began with, else wal)")
	f.BoolVar(&c.GatewayAPI, "gateway-api", c.GatewayAPI, "install the Gateway API's definitions ("+gatewayapi.Version+") and the GatewayClass "+gatewayapi.Class+", where they are missing; upstream's own, applied with kubectl, do as well")
	f.StringVar(&c.NodeTunnel, "node-tunnel", c.NodeTunnel, "when this server reaches nodes, pods and Services by the connections that nodes keep to it: auto (when the direct way fails or is slow), always, never (they tell only whether nodes are alive)")
	f.StringVar(&c.LoadBalancerPool, "load-balancer-pool", c.LoadBalancerPool, "addresses for Services of type LoadBalancer, as a list such as 10.0.0.200-10.0.0.220,192.168.7.0/28,2001:db8::/120; the ConfigMap kube-system/balsa-load-balancer with the key pools comes before it, and may change at any time")
	f.BoolVar(&c.DisableCloud, "disable-cloud-controller", c.DisableCloud, "leave nodes of --cloud-provider=external to a cloud controller manager outside")
	bindAPI(f, &c.API)
	bindAutoscaling(f, &c.Autoscaling)
	f.Int64Var(&c.UnreachableTolerationSeconds, "unreachable-toleration-seconds", c.UnreachableTolerationSeconds,
		"how long pods that say nothing about it wait for a node that is gone before they are replaced elsewhere")
	f.StringVar(&c.BindAddress, "bind-address", c.BindAddress, "address the API listens on")
	f.StringVar(&c.AdvertiseAddress, "advertise-address", c.AdvertiseAddress, "address clients reach the API at (default: the node's)")
	f.IntVar(&c.Port, "port", c.Port, "port of the API")
	f.StringSliceVar(&c.TLSSANs, "tls-san", c.TLSSANs, "further names and addresses for the API's certificate")
	f.BoolVar(&c.DisableAgent, "disable-agent", c.DisableAgent, "run the control plane only: this machine takes no pods")
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
	f.DurationVar(&s.Every, "snapshot-schedule", s.Every, "pause between two snapshots of the cluster, which the server that leads saves; 0 for none")
	f.IntVar(&s.Keep, "snapshot-retention", s.Keep, "how many of them a server keeps")
	f.StringVar(&s.Dir, "snapshot-dir", s.Dir, "where they are kept (default: snapshots/ in the data directory)")
}

func bindCertificates(f *pflag.FlagSet, c *config.Certificates) {
	f.StringVar(&c.ClientCAFile, "client-ca-file", c.ClientCAFile, "file with certificate authorities beside the cluster's own whose clients are believed; followed when it changes")
	f.StringVar(&c.SigningCert, "cluster-signing-cert-file", c.SigningCert, "certificate authority that signs the clients' certificates asked for at the API, instead of the cluster's; the same on all servers, and in --client-ca-file; may be exchanged at any time")
	f.StringVar(&c.SigningKey, "cluster-signing-key-file", c.SigningKey, "its key")
	f.DurationVar(&c.SigningLife, "cluster-signing-duration", c.SigningLife, "the longest that certificates asked for at the API are valid")
}

// flagValues are the values that a server runs with, by the names of its flags:
// those given, those of its file, those of the cluster and the defaults. Join
// tokens are left out.
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
