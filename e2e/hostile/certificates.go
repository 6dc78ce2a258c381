package main

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	capi "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var (
	toAsk   = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageClientAuth}
	toServe = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageServerAuth}
)

// requested creates a CertificateSigningRequest, lets the administrator approve it, and returns the certificate. An
// administrator should not approve such a request, but may be deceived.
func (w *world) requested(ctx context.Context, signer string, usages []capi.KeyUsage, template x509.CertificateRequest) error {
	_, request, err := newKey(template)
	if err != nil {
		return fmt.Errorf("make a request: %v", err)
	}
	requests := w.evil.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &capi.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "hostile-"},
		Spec: capi.CertificateSigningRequestSpec{Request: request, SignerName: signer, Usages: usages}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	csr.Status.Conditions = []capi.CertificateSigningRequestCondition{{Type: capi.CertificateApproved, Status: v1.ConditionTrue, Reason: "Deceived"}}
	if _, err := w.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("approve: %v", err)
	}
	for {
		csr, err := requests.Get(ctx, csr.Name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("look at the request: %v", err)
		}
		if len(csr.Status.Certificate) > 0 {
			return nil
		}
		for _, c := range csr.Status.Conditions {
			if c.Type == capi.CertificateFailed {
				return fmt.Errorf("%w: %s", errRefused, c.Message)
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("no answer to the request")
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *world) certificateAttacks() []attack {
	member := func(group string) pkix.Name {
		subject := nodeNamed(w.node)
		subject.Organization = append(subject.Organization, group)
		return subject
	}
	client := func(subject pkix.Name) func(context.Context) error {
		return func(ctx context.Context) error {
			return w.requested(ctx, capi.KubeAPIServerClientSignerName, toAsk, x509.CertificateRequest{Subject: subject})
		}
	}
	serving := func(node string, names []string, ips ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			template := x509.CertificateRequest{Subject: nodeNamed(node), DNSNames: names}
			for _, ip := range ips {
				template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
			}
			return w.requested(ctx, capi.KubeletServingSignerName, toServe, template)
		}
	}
	ownClient, ownServing := client(nodeNamed(w.node)), serving(w.node, []string{w.node}, w.address)
	api, _, _ := cutPort(w.server)
	return append([]attack{
		{"certificate request: group system:masters", client(member("system:masters")), ownClient},
		{"certificate request: group balsa:servers", client(member("balsa:servers")), ownClient},
		{"certificate request: group balsa:etcd-clients", client(member("balsa:etcd-clients")), ownClient},
		{"certificate request: another node", client(nodeNamed(w.victim)), ownClient},
		{"certificate request: to serve as another node", serving(w.victim, []string{w.victim}), ownServing},
		{"certificate request: a name of another node", serving(w.node, []string{w.victim}), ownServing},
		{"certificate request: an address of another node", serving(w.node, []string{w.node}, w.victimAddress), ownServing},
		{"certificate request: an address of nobody", serving(w.node, []string{w.node}, "192.0.2.99"), ownServing},
		{"certificate request: the API's name", serving(w.node, []string{"kubernetes.default.svc"}), ownServing},
		{"certificate request: a name of --tls-san", serving(w.node, []string{w.san}), ownServing},
		{"certificate request: the API's address", serving(w.node, []string{w.node}, api), ownServing},
		{"certificate request: a Service's address", serving(w.node, []string{w.node}, "10.96.0.1"), ownServing},
		{"approval of its own request", w.approve, ownClient},
	}, w.joinAttacks()...)
}

// approve tries to approve a request with the node's own identity.
func (w *world) approve(ctx context.Context) error {
	_, request, err := newKey(x509.CertificateRequest{Subject: nodeNamed(w.node)})
	if err != nil {
		return fmt.Errorf("make a request: %v", err)
	}
	requests := w.evil.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(ctx, &capi.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{GenerateName: "hostile-"},
		Spec: capi.CertificateSigningRequestSpec{Request: request, SignerName: capi.KubeAPIServerClientSignerName, Usages: toAsk}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create a request: %v", err)
	}
	csr.Status.Conditions = []capi.CertificateSigningRequestCondition{{Type: capi.CertificateApproved, Status: v1.ConditionTrue, Reason: "Mine"}}
	_, err = requests.UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{})
	return err
}

// renewed renews the certificate with an address, and checks that the new one is valid for it.
func (w *world) renewed(address string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, request, err := newKey(x509.CertificateRequest{})
		if err != nil {
			return fmt.Errorf("make a request: %v", err)
		}
		answer, err := w.call(ctx, w.evilPair, "Renew", message(1, request, 2, request, 4, w.address, 4, address))
		if err != nil {
			return err
		}
		block, _ := pem.Decode(fieldOf(answer, 2))
		if block == nil {
			return errors.New("no certificate in the answer")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("the certificate: %v", err)
		}
		if err := cert.VerifyHostname(address); err != nil {
			return fmt.Errorf("%w: the certificate is for %v", errRefused, cert.IPAddresses)
		}
		return nil
	}
}

// joined joins with a token for agents, as one found on the machine, under a name and with an address.
func (w *world) joined(name, address string, replace int, more ...any) func(context.Context) error {
	return func(ctx context.Context) error {
		token, version, err := w.token(ctx)
		if err != nil {
			return fmt.Errorf("make a token: %v", err)
		}
		_, request, err := newKey(x509.CertificateRequest{})
		if err != nil {
			return fmt.Errorf("make a request: %v", err)
		}
		fields := append([]any{1, token, 2, 2, 3, name, 5, address, 6, request, 7, request, 8, request, 9, version, 10, 1, 11, replace}, more...)
		_, err = w.call(ctx, w.evilPair, "Join", message(fields...))
		return err
	}
}

// token returns a new token for agents, and the version that members run.
func (w *world) token(ctx context.Context) (token []byte, version string, err error) {
	answer, err := w.call(ctx, w.adminPair, "CreateToken", message(1, 2))
	if err != nil {
		return nil, "", err
	}
	status, err := w.call(ctx, w.adminPair, "Status", nil)
	return fieldOf(answer, 1), string(fieldOf(status, 5)), err
}

func (w *world) joinAttacks() []attack {
	fresh := func(ctx context.Context) error {
		if err := w.joined("hostile-fresh", "192.0.2.77", 0)(ctx); err != nil {
			return err
		}
		_, err := w.call(ctx, w.adminPair, "Remove", message(1, "hostile-fresh", 2, 1))
		return err
	}
	api, _, _ := cutPort(w.server)
	own := w.renewed(w.address)
	return []attack{
		{"renewal: an address of another node", w.renewed(w.victimAddress), own},
		{"renewal: the API's address", w.renewed(api), own},
		{"renewal: a Service's address", w.renewed("10.96.0.1"), own},
		{"renewal: an address of nobody", w.renewed("192.0.2.99"), own},
		{"joining under another node's name", w.joined(w.victim, "192.0.2.77", 0), fresh},
		{"joining in place of another node", w.joined(w.victim, "192.0.2.77", 1), fresh},
		{"joining under a name of --tls-san", w.joined(w.san, "192.0.2.77", 0), fresh},
		{"joining with an address of another node", w.joined("hostile-fresh", w.victimAddress, 0), fresh},
		{"joining with the API's address", w.joined("hostile-fresh", api, 0), fresh},
		{"joining as a server", func(ctx context.Context) error {
			token, version, err := w.token(ctx)
			if err != nil {
				return fmt.Errorf("make a token: %v", err)
			}
			_, request, _ := newKey(x509.CertificateRequest{})
			_, err = w.call(ctx, w.evilPair, "Join", message(1, token, 2, 1, 3, "hostile-server", 4, "0123456789abcdef0123456789abcdef", 5, "192.0.2.77:6443", 6, request, 9, version, 10, 1))
			return err
		}, fresh},
	}
}
