package server

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/kubeconfig"
	"github.com/balsahq/balsa/control/cluster"
)

// followAdminCertificate writes the kubeconfig again each time the administrator's certificate is renewed, or the trusted CAs
// change.
func (s *server) followAdminCertificate(ctx context.Context) error {
	for {
		changed := s.pki.Changed()
		if err := s.writeKubeconfig(cluster.Records(s.store.View())); err != nil {
			s.log.Warn("cannot write the kubeconfig; it keeps the certificate that it had", "err", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// writeKubeconfig writes the administrator's kubeconfig, with a context for each server that has a record.
func (s *server) writeKubeconfig(records map[string]cluster.MemberRecord) error {
	s.kubeconfigMu.Lock()
	defer s.kubeconfigMu.Unlock()
	var all []kubeconfig.Server
	for _, rec := range records {
		if len(rec.Addresses) > 0 {
			all = append(all, kubeconfig.Server{Name: rec.Name, URL: "https://" + rec.Addresses[0]})
		}
	}
	text, err := kubeconfig.Encode(s.cfg.LocalURL(), all, s.pki.CA(), s.pki.Admin().CertPEM(), s.pki.Admin().KeyPEM())
	if err != nil {
		return err
	}
	return kubeconfig.Write(s.cfg.Kubeconfig(), text)
}
