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
}

// settings are what routing between pods needs. Those of the bridge go with it.
func (c *Config) settings() []setting {
	conf := "ipv4/conf/" + c.Bridge + "/"
	list := []setting{
		{"ipv4/ip_forward", "1", true},
		{conf + "forwarding", "1", false},
		{conf + "route_localnet", "1", false}, // node ports on loopback
		{conf + "proxy_arp_pvlan", "1", false},
		{conf + "send_redirects", "0", false},
		{conf + "rp_filter", "0", false},
		{"ipv4/neigh/" + c.Bridge + "/proxy_delay", "0", false},
	}
	if c.V6 {
		list = append(list, setting{"ipv6/conf/all/forwarding", "1", true})
	}
	return list
}

// applySettings writes those that differ. record holds former values.
func (h *Host) applySettings() error {
	for _, s := range h.cfg.settings() {
		path := filepath.Join(sysctlRoot, s.path)
		raw, err := os.ReadFile(path)
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
