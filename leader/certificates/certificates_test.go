package certificates

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorization "k8s.io/api/authorization/v1"
	capi "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// signers' usual usages.
var (
	toAsk   = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageClientAuth}
	toServe = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageServerAuth}
)

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func asPEM(t testing.TB, r x509.CertificateRequest, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

var nodeSubject = pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}

func object(name, signer string, request []byte, usages []capi.KeyUsage) *capi.CertificateSigningRequest {
	return &capi.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", ResourceVersion: "1", CreationTimestamp: metav1.Now()},
		Spec:       capi.CertificateSigningRequestSpec{SignerName: signer, Request: request, Usages: usages, Username: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers"}},
	}
}

func with(csr *capi.CertificateSigningRequest, condition capi.RequestConditionType) *capi.CertificateSigningRequest {
	csr.Status.Conditions = append(csr.Status.Conditions, capi.CertificateSigningRequestCondition{Type: condition, Status: v1.ConditionTrue, LastUpdateTime: metav1.Now()})
	return csr
}

// inFakeTime runs a test whose clock moves when everything waits.
func inFakeTime(t *testing.T, test func(t *testing.T)) { t.Helper(); synctest.Test(t, test) }

func get(t *testing.T, client *fake.Clientset, name string) *capi.CertificateSigningRequest {
	t.Helper()
	csr, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

// reviews answers SubjectAccessReviews: allow says to which subresource.
func reviews(client *fake.Clientset, allow func(spec authorization.SubjectAccessReviewSpec) bool) *atomic.Int64 {
	var asked atomic.Int64
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		asked.Add(1)
		review := a.(clienttesting.CreateAction).GetObject().(*authorization.SubjectAccessReview).DeepCopy()
		review.Status.Allowed = allow(review.Spec)
		return true, review, nil
	})
	return &asked
}

func TestNodesAreApprovedWhenARoleSaysSo(t *testing.T) {
	inFakeTime(t, func(t *testing.T) {
		key := newKey(t)
		node := asPEM(t, x509.CertificateRequest{Subject: nodeSubject}, key)
		const kubelet = capi.KubeAPIServerClientKubeletSignerName
		own := object("own", kubelet, node, toAsk)
		own.Spec.Username = "system:node:n1"
		client := fake.NewClientset(
			object("joins", kubelet, node, toAsk), own, object("serves", capi.KubeletServingSignerName, node, toServe),
			object("asks", capi.KubeAPIServerClientSignerName, node, toAsk), object("wide", kubelet, node, append(toServe, toAsk...)),
			object("jane", kubelet, asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key), toAsk),
			object("named", kubelet, asPEM(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"n1"}}, key), toAsk),
			object("noise", kubelet, []byte("noise"), toAsk), with(object("denied", kubelet, node, toAsk), capi.CertificateDenied),
		)
		var role atomic.Bool
		asked := reviews(client, func(s authorization.SubjectAccessReviewSpec) bool {
			a := s.ResourceAttributes
			if a.Group != "certificates.k8s.io" || a.Resource != "certificatesigningrequests" || a.Verb != "create" {
				t.Errorf("asked for %+v", a)
			}
			return s.User == "system:node:n1" && a.Subresource == "selfnodeclient" ||
				role.Load() && s.User == "system:bootstrap:abcdef" && s.Groups[0] == "system:bootstrappers" && a.Subresource == "nodeclient"
		})
		workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewApprover(e, 2) })
		synctest.Wait()
		approved := func(name string) bool { is, _ := decided(get(t, client, name)); return is }
		if !approved("own") || approved("joins") {
			t.Error("own must be approved, joins not yet")
		}
		if n := asked.Load(); n != 2 {
			t.Errorf("asked %d times, want once for each of two", n)
		}
		time.Sleep(time.Hour)
		if n := asked.Load(); n > 20 {
			t.Errorf("asked %d times in an hour about one request", n)
		}
		role.Store(true)
		time.Sleep(lastAsk + time.Minute)
		if !approved("joins") {
			t.Error("not approved after its role came")
		}
		if c := get(t, client, "joins").Status.Conditions[0]; c.Reason != "AutoApproved" || c.Message != "Auto approving kubelet client certificate after SubjectAccessReview." {
			t.Errorf("%+v", c)
		}
		for _, name := range []string{"serves", "asks", "wide", "jane", "named", "noise", "denied"} {
			if approved(name) {
				t.Errorf("%s is approved", name)
			}
		}
	})
}

// authority signs with a key of the test's own.
func authority(t testing.TB) (Authority, *atomic.Int64) {
	key, signed := newKey(t), new(atomic.Int64)
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}}
	return Authority{Sign: func(c *x509.Certificate) ([]byte, error) {
		signed.Add(1)
		if c.Subject.CommonName == "refused" {
			return nil, fmt.Errorf("nobody is called so: %w", ErrRefused)
		}
		c.SerialNumber = big.NewInt(2)
		der, err := x509.CreateCertificate(rand.Reader, c, ca, c.PublicKey, key)
		return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
	}}, signed
}

func TestApprovedRequestsAreSignedOrFail(t *testing.T) {
	inFakeTime(t, func(t *testing.T) {
		key := newKey(t)
		jane := asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"devs"}}}, key)
		refused := asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "refused"}}, key)
		const asks = capi.KubeAPIServerClientSignerName
		approved := func(name, signer string, request []byte, usages []capi.KeyUsage) *capi.CertificateSigningRequest {
			return with(object(name, signer, request, usages), capi.CertificateApproved)
		}
		client := fake.NewClientset(
			approved("good", asks, jane, toAsk), object("waits", asks, jane, toAsk),
			with(approved("denied", asks, jane, toAsk), capi.CertificateDenied), with(approved("failed", asks, jane, toAsk), capi.CertificateFailed),
			approved("another-signers", "example.com/signer", jane, toAsk),
			approved("serves", asks, jane, toServe), approved("noise", asks, []byte("noise"), toAsk), approved("refused", asks, refused, toAsk),
		)
		a, signed := authority(t)
		workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewSigner(e, 2, a) })
		time.Sleep(time.Hour)
		for name, want := range map[string]string{"serves": "invalid usage for client certificate: server auth", "noise": "PEM block type must be", "refused": "nobody is called so"} {
			csr := get(t, client, name)
			c := csr.Status.Conditions[len(csr.Status.Conditions)-1]
			if c.Type != capi.CertificateFailed || c.Reason != "SignerValidationFailure" || c.Status != v1.ConditionTrue || !strings.Contains(c.Message, want) || len(csr.Status.Conditions) != 2 {
				t.Errorf("%s: %+v", name, csr.Status.Conditions)
			}
		}
		for _, name := range []string{"waits", "denied", "failed", "another-signers", "serves", "noise", "refused"} {
			if len(get(t, client, name).Status.Certificate) > 0 {
				t.Errorf("%s is signed", name)
			}
		}
		if len(get(t, client, "good").Status.Certificate) == 0 {
			t.Error("good is not signed")
		}
		if n := signed.Load(); n != 2 {
			t.Errorf("%d signatures were asked for, want 2", n)
		}
	})
}

func TestASignerThatCannotSignNowIsAskedAgain(t *testing.T) {
	inFakeTime(t, func(t *testing.T) {
		a, _ := authority(t)
		sign, calls := a.Sign, 0
		a.Sign = func(c *x509.Certificate) ([]byte, error) {
			if calls++; calls < 3 {
				return nil, errors.New("the files do not fit each other")
			}
			return sign(c)
		}
		request := asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, newKey(t))
		client := fake.NewClientset(with(object("a", capi.KubeAPIServerClientSignerName, request, toAsk), capi.CertificateApproved))
		workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewSigner(e, 1, a) })
		time.Sleep(time.Minute)
		if csr := get(t, client, "a"); len(csr.Status.Certificate) == 0 || len(csr.Status.Conditions) != 1 {
			t.Errorf("%+v", csr.Status)
		}
	})
}

func TestWhatEachSignerPermits(t *testing.T) {
	key := newKey(t)
	const asks, kubelet, serves = capi.KubeAPIServerClientSignerName, capi.KubeAPIServerClientKubeletSignerName, capi.KubeletServingSignerName
	jane := pkix.Name{CommonName: "jane"}
	ip, here := []net.IP{net.IPv4(192, 0, 2, 1)}, []string{"n1"}
	uri := []*url.URL{{Scheme: "spiffe", Host: "x"}}
	for what, c := range map[string]struct {
		signer  string
		request x509.CertificateRequest
		usages  []capi.KeyUsage
		fault   string
	}{
		"a user":                    {asks, x509.CertificateRequest{Subject: jane, DNSNames: here}, toAsk, ""},
		"for a signature":           {asks, x509.CertificateRequest{Subject: jane}, []capi.KeyUsage{capi.UsageDigitalSignature}, "missing required usage"},
		"to serve":                  {asks, x509.CertificateRequest{Subject: jane}, append(toServe, toAsk...), "invalid usage"},
		"to sign":                   {asks, x509.CertificateRequest{Subject: jane}, append(toAsk, capi.UsageCertSign), "invalid usage"},
		"a node":                    {kubelet, x509.CertificateRequest{Subject: nodeSubject}, toAsk, ""},
		"with RSA's usages":         {kubelet, x509.CertificateRequest{Subject: nodeSubject}, append(toAsk, capi.UsageKeyEncipherment), ""},
		"not of nodes":              {kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes", "devs"}}}, toAsk, "organization is not system:nodes"},
		"no node":                   {kubelet, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"system:nodes"}}}, toAsk, "does not begin with system:node:"},
		"a node with a name":        {kubelet, x509.CertificateRequest{Subject: nodeSubject, DNSNames: here}, toAsk, "DNS subjectAltNames"},
		"with an address":           {kubelet, x509.CertificateRequest{Subject: nodeSubject, IPAddresses: ip}, toAsk, "IP subjectAltNames"},
		"with a URI":                {kubelet, x509.CertificateRequest{Subject: nodeSubject, URIs: uri}, toAsk, "URI subjectAltNames"},
		"a node's usages":           {kubelet, x509.CertificateRequest{Subject: nodeSubject}, toServe, "usages did not match"},
		"a kubelet":                 {serves, x509.CertificateRequest{Subject: nodeSubject, DNSNames: here, IPAddresses: ip}, toServe, ""},
		"a kubelet without names":   {serves, x509.CertificateRequest{Subject: nodeSubject}, toServe, "DNS or IP subjectAltName is required"},
		"a kubelet with mail":       {serves, x509.CertificateRequest{Subject: nodeSubject, DNSNames: here, EmailAddresses: []string{"a@b"}}, toServe, "Email subjectAltNames"},
		"a kubelet that asks":       {serves, x509.CertificateRequest{Subject: nodeSubject, DNSNames: here}, append(toServe, capi.UsageClientAuth), "usages did not match"},
		"anything":                  {legacyUnknown, x509.CertificateRequest{Subject: jane, DNSNames: here}, []capi.KeyUsage{capi.UsageAny, capi.UsageCodeSigning}, ""},
		"something nobody heard of": {legacyUnknown, x509.CertificateRequest{Subject: jane}, []capi.KeyUsage{"flying"}, "unrecognized usage"},
	} {
		_, err := certificateFor(object("a", c.signer, asPEM(t, c.request, key), c.usages), DefaultLife, time.Now())
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: got %v, want %q", what, err, c.fault)
		}
	}
}

func TestKeysAndRequestsThatAreRefused(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, good, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	jane := x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}
	forged := asPEM(t, jane, newKey(t))
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	for what, c := range map[string]struct {
		request []byte
		fault   string
	}{
		"RSA of 1024 bits":    {asPEM(t, jane, weak), "RSA key of 1024 bits"},
		"P-224":               {asPEM(t, jane, small), "P-224"},
		"Ed25519":             {asPEM(t, jane, good), ""},
		"another's signature": {pem.EncodeToMemory(block), "not signed with the key"},
		"nothing":             {nil, "PEM block type"},
		"a certificate":       {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}), "PEM block type"},
		"noise":               {pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("noise")}), "unable to parse"},
	} {
		got, err := certificateFor(object("a", capi.KubeAPIServerClientSignerName, c.request, toAsk), DefaultLife, time.Now())
		if c.fault == "" && err != nil || c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)) {
			t.Errorf("%s: got %v, %v, want %q", what, got, err, c.fault)
		}
	}
}

func TestANodeGetsItsOwnCertificateAlone(t *testing.T) {
	request := asPEM(t, x509.CertificateRequest{Subject: nodeSubject, DNSNames: []string{"n1"}}, newKey(t))
	for asks, may := range map[string]bool{"system:node:n1": true, "system:node:n2": false, "system:bootstrap:abcdef": true, "jane": true} {
		csr := object("c", capi.KubeletServingSignerName, request, toServe)
		csr.Spec.Username = asks
		if _, err := certificateFor(csr, time.Hour, time.Now()); (err == nil) != may {
			t.Errorf("%s asks for n1's: %v", asks, err)
		}
	}
}

func TestWhoAsksToBeAnAuthorityIsNone(t *testing.T) {
	request := asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"},
		ExtraExtensions: []pkix.Extension{{Id: []int{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}}, newKey(t))
	c, err := certificateFor(object("a", capi.KubeAPIServerClientSignerName, request, toAsk), DefaultLife, time.Now())
	if err != nil || c.IsCA || !c.BasicConstraintsValid || len(c.Extensions)+len(c.ExtraExtensions) > 0 {
		t.Errorf("%v, %+v", err, c)
	}
}

func TestHowLongCertificatesAreValid(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	seconds := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		asked *int32
		life  time.Duration // from now to the end
	}{
		{nil, DefaultLife - backdate}, {seconds(1), shortestLife}, {seconds(600), 10 * time.Minute}, {seconds(3600), time.Hour},
		{seconds(8 * 3600), 8*time.Hour - backdate}, {seconds(1 << 30), DefaultLife - backdate}, {seconds(-5), shortestLife},
	} {
		begin, end := validity(c.asked, DefaultLife, now)
		if !begin.Equal(now.Add(-backdate)) || end.Sub(now) != c.life {
			t.Errorf("asked for %v: from %s to %s", c.asked, begin, end)
		}
	}
}

func TestOldRequestsGoInTheirTime(t *testing.T) {
	inFakeTime(t, func(t *testing.T) {
		begin, key := time.Now(), newKey(t)
		request := asPEM(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}, key)
		make := func(name string, conditions ...capi.RequestConditionType) *capi.CertificateSigningRequest {
			csr := object(name, "example.com/signer", request, toAsk)
			for _, c := range conditions {
				with(csr, c)
			}
			return csr
		}
		issued, short := make("issued", capi.CertificateApproved), make("short", capi.CertificateApproved)
		a, _ := authority(t)
		for csr, life := range map[*capi.CertificateSigningRequest]time.Duration{issued: 100 * time.Hour, short: 20 * time.Minute} {
			signed, err := a.Sign(&x509.Certificate{Subject: pkix.Name{CommonName: "jane"}, PublicKey: key.Public(), NotBefore: begin, NotAfter: begin.Add(life)})
			if err != nil {
				t.Fatal(err)
			}
			csr.Status.Certificate = signed
		}
		client := fake.NewClientset(make("pending"), make("unsigned", capi.CertificateApproved), make("denied", capi.CertificateDenied),
			make("failed", capi.CertificateApproved, capi.CertificateFailed), issued, short)
		workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) { return NewCleaner(e, 1) })
		gone := map[string]time.Duration{}
		for range 30 * 6 { // ten minutes each
			synctest.Wait()
			for _, name := range []string{"pending", "unsigned", "denied", "failed", "issued", "short"} {
				if _, known := gone[name]; !known && get(t, client, name) == nil {
					gone[name] = time.Since(begin)
				}
			}
			time.Sleep(10 * time.Minute)
		}
		for name, want := range map[string]time.Duration{"pending": 24 * time.Hour, "unsigned": 24 * time.Hour, "denied": time.Hour, "failed": time.Hour, "issued": time.Hour, "short": 20 * time.Minute} {
			if at, ok := gone[name]; !ok || at < want || at > want+20*time.Minute {
				t.Errorf("%s went after %s (%v), want %s", name, at, ok, want)
			}
		}
	})
}

func TestTenThousandRequestsNobodyMayHave(t *testing.T) {
	const many = 10000
	for what, c := range map[string]struct {
		signer string
		build  func(workqueue.Env) (workqueue.Runner, error)
		wait   time.Duration
		most   int64 // questions about each
		left   int
	}{
		"for us to approve":   {capi.KubeAPIServerClientKubeletSignerName, func(e workqueue.Env) (workqueue.Runner, error) { return NewApprover(e, 2) }, 10 * time.Second, 5, many},
		"for somebody else":   {"example.com/signer", func(e workqueue.Env) (workqueue.Runner, error) { return NewApprover(e, 2) }, time.Hour, 0, many},
		"for us to sign":      {capi.KubeAPIServerClientSignerName, func(e workqueue.Env) (workqueue.Runner, error) { a, _ := authority(t); return NewSigner(e, 2, a) }, time.Hour, 0, many},
		"for nobody any more": {"example.com/signer", func(e workqueue.Env) (workqueue.Runner, error) { return NewCleaner(e, 2) }, 25 * time.Hour, 0, 0},
	} {
		t.Run(what, func(t *testing.T) {
			inFakeTime(t, func(t *testing.T) {
				request := asPEM(t, x509.CertificateRequest{Subject: nodeSubject}, newKey(t))
				client := fake.NewSimpleClientset()
				for i := range many {
					if err := client.Tracker().Add(object(fmt.Sprintf("r-%d", i), c.signer, request, toAsk)); err != nil {
						t.Fatal(err)
					}
				}
				asked := reviews(client, func(authorization.SubjectAccessReviewSpec) bool { return false })
				workqueuetest.Start(t, client, c.build)
				time.Sleep(c.wait)
				if n := asked.Load(); n > c.most*many || n < min(c.most, 1)*many {
					t.Errorf("asked %d times about %d requests in %s", n, many, c.wait)
				}
				if list, err := client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{}); err != nil || len(list.Items) != c.left {
					t.Errorf("%v, %d are left, want %d", err, len(list.Items), c.left)
				}
			})
		})
	}
}
