package server

import (
	"context"
	"net/netip"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/lifecycle"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/cluster"
)

// startAPI creates and starts the API server, and writes the administrator's kubeconfig.
func (s *server) startAPI() error {
	services, err := config.Prefixes(s.cfg.ServiceCIDR)
	if err != nil {
		return err
	}
	services = append(services, netip.Prefix{}) // the second family has no network in most clusters
	dns, err := netip.ParseAddr(s.cfg.ClusterDNS)
	if err != nil {
		return err
	}
	patience := s.cfg.UnreachableTolerationSeconds
	s.api, err = control.New(control.Config{
		Store: s.store, PKI: s.pki, Secure: s.port.REST(), GRPC: s.services, Tunnel: s.tunnel, AdvertiseAddress: s.advertise, AdvertisePort: s.cfg.Port,
		ServiceCIDR: services[0], SecondServiceCIDR: services[1], ClusterDomain: s.cfg.ClusterDomain, ClusterDNS: dns, IngressClass: s.cfg.Ingress.Class(), TolerationSeconds: &patience, Logger: s.log,
		Authentication: s.cfg.API.Authentication, Authorization: s.cfg.API.Authorization, Audit: s.cfg.API.Audit, Encryption: s.cfg.API.Encryption,
		ClientCAs: s.clients, RefuseClient: s.checkRevoked,
		MaxReads: s.cfg.API.MaxReads, MaxWrites: s.cfg.API.MaxWrites, MaxStreams: s.cfg.API.MaxStreams, RequestTimeout: s.cfg.API.RequestTimeout,
		ResourceMetrics: s.reports,
		CheckNodeIPs:    s.services.cluster.CheckNodeClaim, Admission: s.cfg.API.Admission, PodPresets: s.cfg.API.PodPresets, Initializers: s.cfg.API.Initializers, LegacyAPIs: s.cfg.API.LegacyAPIs, Settings: s.cfg.FlagValues(s.cfg), Debug: s.debug,
	})
	if err != nil {
		return err
	}
	if err := s.writeKubeconfig(cluster.Records(s.store.View())); err != nil {
		return err
	}
	s.parts.Keep("kubeconfig", s.followAdminCertificate)
	s.parts.Start("API", s.api.Run)
	s.startGatewayAPI()
	s.parts.Keep("milestones", func(ctx context.Context) error {
		if lifecycle.Await(ctx, s.api.Ready()) {
			s.progress.Reached(process.MilestoneAPI)
			s.printJoinCommands(ctx)
		}
		<-ctx.Done()
		return nil
	})
	return nil
}
