package overlay

import (
	"errors"

	"github.com/balsahq/balsa/overlay/host"
	"github.com/balsahq/balsa/overlay/services/rules"
)

// Cleanup removes everything that a Network of this configuration ever made: nftables, links with their addresses and routes,
// the CNI configuration, the record of pod addresses. It restores kernel settings. It needs only the names and directories of
// the configuration, and may be called again. No Network may be running.
func Cleanup(cfg Config) error {
	cfg.fill()
	ns, err := host.OpenNamespace(cfg.NetNS)
	if err != nil {
		return err
	}
	defer ns.Close()
	return errors.Join(
		ns.Do(func() error { return rules.Remove(ns.FD()) }),
		host.Remove(cfg.hostConfig(ns)),
		cfg.removeFiles(),
	)
}
