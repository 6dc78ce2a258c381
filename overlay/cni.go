package overlay

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"

	gocni "github.com/containerd/go-cni"

	"github.com/balsahq/balsa/overlay/host"
)

// Conflist returns the CNI configuration for pods of these networks: the bridge plugin with host-local addresses. Ports of
// the bridge are isolated, so that the host routes between pods (see package host). nftables does masquerading and host
// ports, so no plugin does.
func Conflist(cfg Config, pods []netip.Prefix) ([]byte, error) {
	cfg.fill()
	type object = map[string]any
	var ranges, routes []any
	for _, p := range pods {
		ranges = append(ranges, []any{object{"subnet": p.String(), "gateway": p.Addr().Next().String()}})
		if p.Addr().Is4() {
			routes = append(routes, object{"dst": "0.0.0.0/0"})
			continue
		}
		routes = append(routes, object{"dst": "::/0"})
		for _, half := range halves(p) {
			routes = append(routes, object{"dst": half.String(), "gw": p.Addr().Next().String()})
		}
	}
	bridge := object{
		"type": "bridge", "bridge": cfg.Bridge, "isGateway": true, "hairpinMode": true, "portIsolation": true, "ipMasq": false,
		"ipam": object{"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": cfg.ipamDir()},
	}
	if cfg.MTU > 0 {
		bridge["mtu"] = cfg.MTU
	}
	plugins := []any{bridge}
	if cfg.Bandwidth {
		plugins = append(plugins, object{"type": "bandwidth", "capabilities": object{"bandwidth": true}})
	}
	return json.MarshalIndent(object{"cniVersion": "1.0.0", "name": networkName, "plugins": plugins}, "", "  ")
}

// halves returns the two halves of a network. With a route to each half through the gateway, a pod sends to its neighbours
// through the host too: these routes are more specific than the route to the whole network that comes with an address. In
// IPv4 proxy_arp_pvlan does this, for which IPv6 has no counterpart.
//
// A host that finds sender and receiver on one link redirects the sender (RFC 4861, 8). Pods ignore the redirect, because it
// comes from the host's link-local address and not from the address of their gateway. The half with the gateway comes second:
// once its route is there, the kernel accepts no further route through that gateway.
func halves(p netip.Prefix) []netip.Prefix {
	if p.Bits() >= p.Addr().BitLen() {
		return nil
	}
	upper := p.Masked().Addr().AsSlice()
	upper[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	a, _ := netip.AddrFromSlice(upper)
	return []netip.Prefix{netip.PrefixFrom(a, p.Bits()+1), netip.PrefixFrom(p.Masked().Addr(), p.Bits()+1)}
}

// writeConflist writes the configuration where runtimes look for it, unless it is there already, because they reload on change.
func (e *engine) writeConflist() error {
	if e.cfg.ForeignPods { // an older configuration of this program would take precedence over the other plugin's
		return e.cfg.removeConflist()
	}
	cfg := e.cfg
	cfg.MTU = e.podMTU()
	want, err := Conflist(cfg, e.pods)
	if err != nil {
		return err
	}
	path := filepath.Join(e.cfg.CNIConfDir, ConflistName)
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, want) {
		return nil
	}
	return host.WriteFile(path, want)
}

// Attachment is a network namespace that is attached to the node's network.
type Attachment struct {
	plugins gocni.CNI
	id      string
	netns   string
	// Addresses are the namespace's addresses.
	Addresses []netip.Addr
}

// Attach attaches the network namespace at a path to the network as a runtime would, with the configuration in confDir and the
// plugins in binDirs. It is for checks and for programs without a runtime. id must be unique on the node.
func Attach(ctx context.Context, confDir string, binDirs []string, id, netns string) (*Attachment, error) {
	a, err := Attached(confDir, binDirs, id, netns)
	if err != nil {
		return nil, err
	}
	result, err := a.plugins.Setup(ctx, id, netns)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", id, err)
	}
	if link, ok := result.Interfaces["eth0"]; ok {
		for _, c := range link.IPConfigs {
			a.Addresses = append(a.Addresses, address(c.IP))
		}
	}
	return a, nil
}

// Attached returns the attachment that an earlier Attach with the same arguments made, so that it can be detached. Its
// Addresses are not known.
func Attached(confDir string, binDirs []string, id, netns string) (*Attachment, error) {
	plugins, err := gocni.New(gocni.WithPluginConfDir(confDir), gocni.WithPluginDir(binDirs), gocni.WithMinNetworkCount(2))
	if err != nil {
		return nil, fmt.Errorf("CNI: %w", err)
	}
	if err := plugins.Load(gocni.WithLoNetwork, gocni.WithDefaultConf); err != nil {
		return nil, fmt.Errorf("CNI configuration in %s: %w", confDir, err)
	}
	return &Attachment{plugins: plugins, id: id, netns: netns}, nil
}

// Detach detaches the namespace from the network and frees its addresses.
func (a *Attachment) Detach(ctx context.Context) error {
	if err := a.plugins.Remove(ctx, a.id, a.netns); err != nil {
		return fmt.Errorf("detach %s: %w", a.id, err)
	}
	return nil
}

// removeFiles deletes the configuration and the record of allocated addresses.
func (c *Config) removeFiles() error {
	return errors.Join(c.removeConflist(), os.RemoveAll(c.ipamDir()))
}

func (c *Config) removeConflist() error {
	if err := os.Remove(filepath.Join(c.CNIConfDir, ConflistName)); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
