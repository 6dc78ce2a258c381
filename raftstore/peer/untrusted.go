package peer

import (
	"crypto/x509"
)

// DropUntrusted closes every connection whose client's certificate was verified and would not be now: its CA is not trusted any
// more. It returns how many. Connections that showed no certificate stay.
func (p *Port) DropUntrusted() int {
	p.gate.mu.Lock()
	var all []*portConn
	for _, c := range p.gate.known.All() {
		if len(c.shown) > 0 {
			all = append(all, c)
		}
	}
	p.gate.mu.Unlock()
	roots, hints := p.cfg.Roots(), p.cfg.Hints()
	dropped := 0
	for _, c := range all {
		if clientVerifies(c.shown, roots) || c.route == nil && !c.grpc && clientVerifies(c.shown, hints) {
			continue
		}
		_ = c.Close()
		dropped++
	}
	return dropped
}

// clientVerifies reports whether a client's chain leads to one of the roots.
func clientVerifies(chain []*x509.Certificate, roots *x509.CertPool) bool {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	return err == nil
}

// DropUntrusted closes the connections to and from servers whose certificate would not be trusted now.
func (n *Network) DropUntrusted() {
	roots := n.cfg.Roots()
	n.conns.dropAll(func(c *conn) bool {
		_, err := c.leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
		return err != nil
	})
}
