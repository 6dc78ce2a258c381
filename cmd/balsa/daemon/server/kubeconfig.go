package server

import (
	"context"

	"github.com/balsahq/balsa/cmd/balsa/daemon/kubeconfig"
	"github.com/balsahq/balsa/control/cluster"
)

// followAdmin writes the kubeconfig anew when the administrator's certificate has been renewed, or other
// CAs count.
func (s *server) followAdmin(ctx context.Context) error {
	for {
		changed := s.pki.Changed()
		if err := s.writeKubeconfig(cluster.Records(s.store.View())); err != nil {
			s.log.Warn("the kubeconfig keeps the certificate it had", "err", err)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// writeKubeconfig writes the administrator's, with a context for each server.
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
