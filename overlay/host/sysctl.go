package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const sysctlRoot = "/proc/sys/net"

// setting is a kernel setting below /proc/sys/net.
type setting struct {
	path, value string
	// kept: the setting outlives the overlay's links, so its former value is recorded, and Remove restores it.
	kept bool
	// optional: a kernel may lack it.
	optional bool
}

// settings returns the settings that routing between pods needs. Those of the bridge go away with it.
func (c *Config) settings() []setting {
	list := []setting{{path: "ipv4/ip_forward", value: "1", kept: true}}
	if c.has6() {
		list = append(list, setting{path: "ipv6/conf/all/forwarding", value: "1", kept: true})
	}
	if c.Bridge == "" {
		return list
	}
	conf := "ipv4/conf/" + c.Bridge + "/"
	list = append(list, []setting{
		{path: conf + "forwarding", value: "1"},
		{path: conf + "route_localnet", value: "1"}, // lets clients reach node ports at 127.0.0.1
		{path: conf + "proxy_arp_pvlan", value: "1"},
		{path: conf + "send_redirects", value: "0"},
		{path: conf + "rp_filter", value: "0"},
		{path: "ipv4/neigh/" + c.Bridge + "/proxy_delay", value: "0"},
		// With br_netfilter the bridge would redirect packets itself, to ports that are isolated.
		{path: "bridge/bridge-nf-call-iptables", value: "0", kept: true, optional: true},
		{path: "bridge/bridge-nf-call-ip6tables", value: "0", kept: true, optional: true},
	}...)
	if c.has6() {
		list = append(list, settings6(c.Bridge)...)
	}
	return list
}

// settings6 returns the settings for IPv6 on one of the overlay's links: no duplicate address detection, because the
// overlay assigns the addresses, and no router advertisements.
func settings6(link string) []setting {
	conf := "ipv6/conf/" + link + "/"
	return []setting{{path: conf + "disable_ipv6", value: "0"}, {path: conf + "accept_ra", value: "0"}, {path: conf + "accept_dad", value: "0"}}
}

// has6 tells whether pods or Services have IPv6 addresses.
func (c *Config) has6() bool {
	is6 := func(p netip.Prefix) bool { return p.Addr().Is6() }
	return slices.ContainsFunc(c.Gateways, is6) || slices.ContainsFunc(c.Services, is6)
}

// uplinkSettings returns the settings that keep the routes that this host learned from router advertisements: a host that forwards
// ignores these by default.
func (h *Host) uplinkSettings() (list []setting) {
	routes, err := h.mainTables()
	if err != nil {
		return nil
	}
	told := make(map[int]struct{})
	for i := range routes {
		if routes[i].Protocol == unix.RTPROT_RA {
			told[routes[i].LinkIndex] = struct{}{}
		}
	}
	for index := range told {
		if l, err := h.link.LinkByIndex(index); err == nil {
			path := "ipv6/conf/" + l.Attrs().Name + "/accept_ra"
			list = append(list, setting{path: path, value: "2", kept: true, optional: true})
		}
	}
	return list
}

// tunnelSettings returns the settings that the tunnel's link needs; they go away with it.
func (c *Config) tunnelSettings(link string, has6 bool) []setting {
	conf := "ipv4/conf/" + link + "/"
	list := []setting{
		{path: conf + "forwarding", value: "1"},
		// Loose: while a node moves, answers to packets from the tunnel may leave by another route.
		{path: conf + "rp_filter", value: "2"},
	}
	if !has6 {
		return append(list, setting{path: "ipv6/conf/" + link + "/disable_ipv6", value: "1", optional: true}) // no IPv6 inside the tunnel
	}
	return append(list, settings6(link)...)
}

// Drifted tells whether a kernel setting differs from what Apply set. It reads a dozen small files, because the kernel does not
// announce changes of these settings.
func (c *Config) Drifted() (drifted bool) {
	_ = c.Namespace.Do(func() error {
		for _, s := range c.settings() {
			raw, err := os.ReadFile(filepath.Join(sysctlRoot, s.path))
			if err == nil && strings.TrimSpace(string(raw)) != s.value {
				drifted = true
			}
		}
		return nil
	})
	return drifted
}

// applySettings writes the settings that differ. record keeps the former values.
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
		h.cfg.Logger.Info("kernel setting changed; Cleanup restores it", "name", s.path, "value", s.value)
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

// record stores the value that a setting had before this program changed it. Later calls for the same setting change
// nothing.
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

// restoreSettings restores the recorded values.
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

// WriteFile replaces a file such that a reader sees the old or the new content, never a part of it.
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
