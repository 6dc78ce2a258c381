package membership

import (
	"errors"
	"fmt"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/cluster"
)

// Settings returns c in the form in which the cluster's first server records it.
func Settings(c *config.Cluster) cluster.Settings {
	return cluster.Settings{ServiceCIDR: c.ServiceCIDR, ClusterCIDR: c.ClusterCIDR, ClusterDNS: c.ClusterDNS, ClusterDomain: c.ClusterDomain, GossipPort: c.GossipPort}
}

// Agree sets c to the settings s that the cluster was created with. It returns an error
// for each flag that differs from both s and the default, because the flag would have
// no effect.
func Agree(c *config.Cluster, s cluster.Settings) error {
	usual := config.DefaultCluster()
	var faults []error
	for _, f := range []struct {
		flag              string
		mine              *string
		theirs, byDefault string
	}{
		{"service-cidr", &c.ServiceCIDR, s.ServiceCIDR, usual.ServiceCIDR},
		{"cluster-cidr", &c.ClusterCIDR, s.ClusterCIDR, usual.ClusterCIDR},
		{"cluster-dns", &c.ClusterDNS, s.ClusterDNS, usual.ClusterDNS},
		{"cluster-domain", &c.ClusterDomain, s.ClusterDomain, usual.ClusterDomain},
	} {
		if f.theirs == "" || *f.mine == f.theirs {
			continue
		}
		if *f.mine != f.byDefault {
			faults = append(faults, fmt.Errorf("--%s %s: this cluster was begun with %s, which cannot be changed; leave the flag out", f.flag, *f.mine, f.theirs))
		}
		*f.mine = f.theirs
	}
	if s.GossipPort != 0 {
		c.GossipPort = s.GossipPort
	}
	return errors.Join(faults...)
}
