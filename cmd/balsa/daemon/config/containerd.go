package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// Containerd returns the settings of the bundled containerd.
func (c *Node) Containerd() noderuntime.Config {
	out := c.Runtime()
	out.DropInDir, out.ProgramDirs, out.Handlers = c.ContainerdConfigDir, noderuntime.ProgramDirs, c.handlers()
	return out
}

func (c *Node) handlers() (out []noderuntime.Handler) {
	for _, name := range slices.Sorted(maps.Keys(c.RuntimeHandlers)) {
		out = append(out, noderuntime.Handler{Name: name, Path: c.RuntimeHandlers[name]})
	}
	return out
}

func (c *Node) containerdFaults() (faults []error) {
	for _, h := range c.handlers() {
		if err := h.Validate(); err != nil {
			faults = append(faults, fmt.Errorf("--runtime-handler: %w", err))
		}
	}
	if d := c.ContainerdConfigDir; d != "" && !filepath.IsAbs(d) {
		faults = append(faults, fmt.Errorf("--containerd-config-dir %q: give an absolute path", d))
	}
	if c.RuntimeEndpoint != "" && (len(c.RuntimeHandlers) > 0 || c.ContainerdConfigDir != "") {
		faults = append(faults, fmt.Errorf("--runtime-handler and --containerd-config-dir are for the containerd inside this binary, and --container-runtime-endpoint names another one: configure the handlers there"))
	}
	return faults
}
