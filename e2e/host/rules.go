package host

import (
	"fmt"
	"runtime"

	"github.com/google/nftables"
	"github.com/vishvananda/netns"
)

// Ruleset returns the nftables tables of this host.
func (h *Host) Ruleset() ([]string, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, err := netns.GetFromName(h.Name)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(ns)))
	if err != nil {
		return nil, err
	}
	tables, err := conn.ListTables()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, table := range tables {
		out = append(out, fmt.Sprintf("table %d %s", table.Family, table.Name))
	}
	return out, nil
}
