package main

import (
	"errors"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/balsahq/balsa/overlay"
	"github.com/balsahq/balsa/overlay/mesh"
	"github.com/balsahq/balsa/overlay/policy"
)

// networkState tells the node agent whether pods can be attached.
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

// overlayConfig is the network of this node without its sources of objects.
func overlayConfig(cfg *config, log *slog.Logger) (overlay.Config, error) {
	services, err := netip.ParsePrefix(cfg.ServiceCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	pods, err := netip.ParsePrefix(cfg.ClusterCIDR)
	if err != nil {
		return overlay.Config{}, err
	}
	dns, err := netip.ParseAddr(cfg.ClusterDNS)
	if err != nil {
		return overlay.Config{}, err
	}
	return overlay.Config{
		NodeName: cfg.NodeName, PodCIDRs: []netip.Prefix{pods}, ServiceCIDRs: []netip.Prefix{services},
		DNS: []netip.Addr{dns}, Domain: cfg.ClusterDomain, CNIConfDir: cfg.cniConfDir(),
		StateDir: filepath.Join(cfg.agentDir(), "network"), Logger: log,
		Mode: mesh.Mode(cfg.OverlayMode), VXLANPort: cfg.VXLANPort,
	}, nil
}

// cleanNetwork removes from the kernel what the network ever made.
func cleanNetwork(cfg *config) error {
	settings, err := overlayConfig(cfg, slog.Default())
	if err != nil {
		return err
	}
	return errors.Join(policy.Cleanup(""), overlay.Cleanup(settings))
}
