package criconfig

// Config holds the settings of the node and the cluster that the translation needs besides the pod.
type Config struct {
	// RootDir holds pods/<uid> and seccomp/; LogDir holds pods/ and containers/.
	RootDir, LogDir string
	// ResolvConf is the host's resolver configuration that pods may inherit.
	ResolvConf string
	// ClusterDNS are the name servers of pods; ClusterDomain is the cluster's domain.
	ClusterDNS    []string
	ClusterDomain string
	// SeccompDefault runs containers that name no seccomp profile with the runtime's default one, not unconfined.
	SeccompDefault bool
	// SandboxConfinesItself: the sandbox's image installs a seccomp filter of its own, so none is asked for.
	SandboxConfinesItself bool
}
