package nodesetup

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/policy"
	"github.com/balsahq/balsa/overlay/routes"
)

// networkState tells the node agent whether the network can attach pods yet.
type networkState struct{ ready <-chan struct{} }

// Ready implements node.Network.
func (n *networkState) Ready() error {
	select {
	case <-n.ready:
		return nil
	default:
		return errors.New("the pod network is being set up")
	}
}

// overlayConfig returns the configuration of this node's network, without the informers and clients that feed it.
func overlayConfig(cfg *config.Node, log *slog.Logger) (overlay.Config, error) {
	services, err := config.Prefixes(cfg.ServiceCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	pods, err := config.Prefixes(cfg.ClusterCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	dns, err := netip.ParseAddr(cfg.ClusterDNS)
	if err != nil {
		return overlay.Config{}, err
	}
	mode := routes.Mode(cfg.OverlayMode)
	if cfg.Encryption == config.EncryptionWireGuard {
		mode = routes.WireGuard
	}
	return overlay.Config{
		NodeName: cfg.NodeName, PodCIDRs: pods, ServiceCIDRs: services, ForeignPods: cfg.NetworkPlugin == config.PluginCNI,
		DNS: []netip.Addr{dns}, Domain: cfg.ClusterDomain, CNIConfDir: cfg.CNIConfDir(),
		StateDir: filepath.Join(cfg.AgentDir(), "network"), Logger: log,
		Mode: mode, WireGuardPort: cfg.WireGuardPort, VXLANPort: cfg.VXLANPort, Offload: cfg.VXLANOffload, UDPPort: cfg.UDPPort,
	}, nil
}

func (a Node) overlayConfig() (overlay.Config, error) {
	settings, err := overlayConfig(a.Config, a.Logger)
	settings.Reserved = a.APIAddresses
	return settings, err
}

// CleanNetwork removes the links, routes, rules and NetworkPolicies that the network has made in the kernel, in this run or an
// earlier one.
func CleanNetwork(cfg *config.Node) error {
	settings, err := overlayConfig(cfg, slog.Default())
	if err != nil {
		return err
	}
	return errors.Join(policy.Cleanup(""), overlay.Cleanup(settings))
}
