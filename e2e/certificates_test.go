package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// identity is a file with a certificate and its key.
type identity struct {
	file string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issued returns a certificate signed by another one, or a self-signed CA.
func issued(t *testing.T, by *identity, name string) *identity {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name, Organization: []string{"devs"}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	parent, signer := template, key
	if by != nil {
		parent, signer = by.cert, by.key
	} else {
		template.IsCA, template.KeyUsage, template.ExtKeyUsage = true, x509.KeyUsageCertSign, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	out := &identity{key: key, file: filepath.Join(t.TempDir(), "id.pem")}
	if out.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return out.keep(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func (i *identity) keep(t *testing.T, certPEM []byte) *identity {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(i.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(i.file, append(certPEM, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...), 0o600); err != nil {
		t.Fatal(err)
	}
	return i
}

func whoamiWith(file string) []string {
	return []string{"--client-certificate", file, "--client-key", file, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"}
}

const askFor = `
apiVersion: certificates.k8s.io/v1
kind: CertificateSigningRequest
metadata: {name: NAME}
spec: {signerName: kubernetes.io/kube-apiserver-client, usages: [client auth], expirationSeconds: 3600, request: DATA}
`

// TestCertificates covers the client certificates that join no machine: those of another CA, those that an
// administrator approved, and those of a removed node.
func TestCertificates(t *testing.T) {
	s := newSeveral(t, 1, 1, 0)
	first, agent, authority := s.servers[0], s.agents[0], issued(t, nil, "another authority")
	s.must(first.Start("server", "--client-ca-file", authority.file))
	s.ready(first)
	s.join(agent, "agent")
	first.eventually("the agent is ready", first.wants("True", "get", "node", agent.NodeName(), "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`))

	if who := first.kubectl(whoamiWith(issued(t, authority, "jane").file)...); who != "jane" {
		t.Errorf("a client of the other authority is %q", who)
	}
	first.refused(whoamiWith(issued(t, issued(t, nil, "nobody's"), "jane").file)...)
	first.eventually("aggregated servers are told of both authorities", func() error {
		told := first.kubectl("get", "configmap", "extension-apiserver-authentication", "-n", "kube-system", "-o", "jsonpath={.data.client-ca-file}")
		if n := strings.Count(told, "BEGIN CERTIFICATE"); n != 2 {
			return fmt.Errorf("%d authorities", n)
		}
		return nil
	})

	mine := issued(t, nil, "mine")
	for _, name := range []string{"good", "bad"} {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "asker"}}, mine.key)
		s.must(err)
		data := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
		first.apply(strings.NewReplacer("NAME", name, "DATA", data).Replace(askFor))
	}
	first.kubectl("certificate", "approve", "good")
	first.kubectl("certificate", "deny", "bad")
	first.eventually("it is issued", first.wants("Approved,Issued", "get", "csr", "good"))
	first.eventually("the other is not", first.wants("Denied", "get", "csr", "bad"))
	certPEM, err := base64.StdEncoding.DecodeString(first.kubectl("get", "csr", "good", "-o", "jsonpath={.status.certificate}"))
	s.must(err)
	if who := first.kubectl(whoamiWith(mine.keep(t, certPEM).file)...); who != "asker" {
		t.Errorf("who was approved is %q", who)
	}

	node := filepath.Join(agent.DataDir, "agent", "node-client.pem")
	if who := first.kubectl(whoamiWith(node)...); who != "system:node:"+agent.NodeName() {
		t.Errorf("the agent is %q", who)
	}
	s.must(agent.Process().Kill9())
	if out, err := first.Balsa(t.Context(), "members", "remove", agent.NodeName(), "--force"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	first.refused(whoamiWith(node)...)
	first.refused(whoamiWith(filepath.Join(agent.DataDir, "agent", "node-services.pem"))...)
}
