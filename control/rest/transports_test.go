package rest

import (
	"crypto/tls"
	"testing"
)

// TestKubeletConnectionsFollowTheClientCertificate checks that requests to a node use new connections once the API server
// has another client certificate.
func TestKubeletConnectionsFollowTheClientCertificate(t *testing.T) {
	shown := byte(1)
	r := newNodeTransports(nil, Config{KubeletClient: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		return &tls.Certificate{Certificate: [][]byte{{shown}}}, nil
	}})
	first := r.forNode("n1")
	if r.forNode("n1") != first {
		t.Error("the transports changed though the certificate did not")
	}
	shown = 2
	second := r.forNode("n1")
	if second == first {
		t.Fatal("the transports of the old certificate are still used")
	}
	if r.forNode("n1") != second {
		t.Error("the transports of the new certificate are not kept")
	}
}
