package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const sysctlRoot = "/proc/sys/net"

// setting is a kernel setting below /proc/sys/net.
type setting struct {
	path, value string
	// kept: it outlives our links, so its former value is recorded and restored by Remove.
	kept bool
	// optional: a kernel without it is as good.
	optional bool
}

// settings are what routing between pods needs. Those of the bridge go with it.
func (c *Config) settings() []setting {
	conf := "ipv4/conf/" + c.Bridge + "/"
	return []setting{
		{path: "ipv4/ip_forward", value: "1", kept: true},
		{path: conf + "forwarding", value: "1"},
		{path: conf + "route_localnet", value: "1"}, // node ports on loopback
		{path: conf + "proxy_arp_pvlan", value: "1"},
		{path: conf + "send_redirects", value: "0"},
		{path: conf + "rp_filter", value: "0"},
		{path: "ipv4/neigh/" + c.Bridge + "/proxy_delay", value: "0"},
		// With br_netfilter the bridge would redirect packets itself, to ports that are kept apart.
		{path: "bridge/bridge-nf-call-iptables", value: "0", kept: true, optional: true},
		{path: "bridge/bridge-nf-call-ip6tables", value: "0", kept: true, optional: true},
	}
}

// tunnelSettings are what the tunnel's link needs; they go with it.
func (c *Config) tunnelSettings() []setting {
	conf := "ipv4/conf/" + c.Tunnel + "/"
	return []setting{
		{path: conf + "forwarding", value: "1"},
		// Loose: a node that sends through the tunnel may be answered by another way while it moves.
		{path: conf + "rp_filter", value: "2"},
		{path: "ipv6/conf/" + c.Tunnel + "/disable_ipv6", value: "1", optional: true}, // nothing to say inside
	}
}

// applySettings writes those that differ. record holds former values.
func (h *Host) applySettings(list []setting) error {
	for _, s := range list {
		path := filepath.Join(sysctlRoot, s.path)
		raw, err := os.ReadFile(path)
		if s.optional && errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", s.path, err)
		}
		if strings.TrimSpace(string(raw)) == s.value {
			continue
		}
		if s.kept {
			if err := h.record(s.path, strings.TrimSpace(string(raw))); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, []byte(s.value), 0o644); err != nil {
			return fmt.Errorf("write %s: %w", s.path, err)
		}
		h.cfg.Logger.Info("kernel setting changed", "name", s.path, "value", s.value)
	}
	return nil
}

func (c *Config) recordPath() string { return filepath.Join(c.StateDir, "sysctl.json") }

func (c *Config) recorded() (map[string]string, error) {
	values := make(map[string]string)
	raw, err := os.ReadFile(c.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return values, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", c.recordPath(), err)
	}
	return values, nil
}

// record keeps the value a setting had before us; the first one counts.
func (h *Host) record(path, value string) error {
	values, err := h.cfg.recorded()
	if err != nil {
		return err
	}
	if _, ok := values[path]; ok {
		return nil
	}
	values[path] = value
	raw, err := json.Marshal(values)
	if err != nil {
		return err
	}
	return WriteFile(h.cfg.recordPath(), raw)
}

// restoreSettings puts back what was recorded.
func (c *Config) restoreSettings() error {
	values, err := c.recorded()
	if err != nil {
		return err
	}
	var errs []error
	for path, value := range values {
		err := os.WriteFile(filepath.Join(sysctlRoot, path), []byte(value), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	err = os.Remove(c.recordPath())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// WriteFile replaces a file so that a reader sees the old or the new content, never half of it.
func WriteFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(content)
	if err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
