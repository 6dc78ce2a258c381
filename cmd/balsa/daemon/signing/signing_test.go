package signing_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	capi "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate/csr"

	"github.com/balsahq/balsa/cmd/balsa/daemon/signing"
	"github.com/balsahq/balsa/control"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/controltest"
	"github.com/balsahq/balsa/leader/certificates"
	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

// cluster is an API server with the three controllers, each acting as upstream's account.
type cluster struct {
	*controltest.Server
	admin *kubernetes.Clientset
}

func start(t *testing.T, cfg pki.IssuerConfig, settings ...func(*control.Config)) *cluster {
	t.Helper()
	s := controltest.Start(t, settings...)
	c := &cluster{Server: s, admin: s.Admin()}
	issuer, err := s.PKI.Issuer(cfg)
	must(t, err)
	client := kubernetes.NewForConfigOrDie(s.Client(control.Identity{User: "system:serviceaccount:kube-system:certificate-controller",
		Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"}}))
	workqueuetest.Start(t, client, func(e workqueue.Env) (workqueue.Runner, error) {
		approver, err := certificates.NewApprover(e, 2)
		must(t, err)
		signer, err := certificates.NewSigner(e, 2, signing.Authority(issuer, 0))
		must(t, err)
		cleaner, err := certificates.NewCleaner(e, 1)
		return workqueue.RunAll(approver, signer, cleaner), err
	})
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	return key
}

func request(t testing.TB, key crypto.Signer, r x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func nodeNamed(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

var (
	toAsk   = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageClientAuth}
	toServe = []capi.KeyUsage{capi.UsageDigitalSignature, capi.UsageServerAuth}
)

// ask creates a request with the library that kubelets use, and returns its name.
func ask(t testing.TB, as kubernetes.Interface, signer string, data []byte, key any, usages []capi.KeyUsage) (name string, err error) {
	t.Helper()
	name, _, err = csr.RequestCertificateWithContext(t.Context(), as, data, "", signer, nil, usages, key)
	return name, err
}

func (c *cluster) get(t testing.TB, name string) *capi.CertificateSigningRequest {
	t.Helper()
	r, err := c.admin.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	return r
}

// certificate waits until the request is answered with one.
func (c *cluster) certificate(t testing.TB, name string) []byte {
	t.Helper()
	var r *capi.CertificateSigningRequest
	controltest.Await(t, "a certificate for "+name, func() bool { r = c.get(t, name); return len(r.Status.Certificate) > 0 })
	return r.Status.Certificate
}

// failure waits until the request has failed and returns why.
func (c *cluster) failure(t testing.TB, name string) (why string) {
	t.Helper()
	controltest.Await(t, "the failure of "+name, func() bool {
		for _, condition := range c.get(t, name).Status.Conditions {
			if condition.Type == capi.CertificateFailed {
				why = condition.Message
			}
		}
		return why != ""
	})
	return why
}

func (c *cluster) approve(t testing.TB, name string) {
	t.Helper()
	r := c.get(t, name)
	r.Status.Conditions = append(r.Status.Conditions, capi.CertificateSigningRequestCondition{Type: capi.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"})
	_, err := c.admin.CertificatesV1().CertificateSigningRequests().UpdateApproval(t.Context(), name, r, metav1.UpdateOptions{})
	must(t, err)
}

// as is a client with a certificate.
func (c *cluster) as(t testing.TB, certPEM []byte, key *ecdsa.PrivateKey) *kubernetes.Clientset {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	config := c.Anybody()
	config.CertData, config.KeyData = certPEM, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return kubernetes.NewForConfigOrDie(config)
}

func whoami(t testing.TB, client kubernetes.Interface) authenticationv1.UserInfo {
	t.Helper()
	r, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{Username: err.Error()}
	}
	return r.Status.UserInfo
}

// bootstrapGroup is that of the tokens `kubeadm token create` makes.
const bootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

// bootstrapToken makes one as kubeadm does.
func (c *cluster) bootstrapToken(t testing.TB) string {
	t.Helper()
	_, err := c.admin.CoreV1().Secrets("kube-system").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef"}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true", "auth-extra-groups": bootstrapGroup},
	}, metav1.CreateOptions{})
	must(t, err)
	return "abcdef.0123456789abcdef"
}

func (c *cluster) bind(t testing.TB, name, role, group string) {
	t.Helper()
	_, err := c.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}, metav1.CreateOptions{})
	must(t, err)
}

// A kubelet that is not Balsa's joins as it joins any cluster: with a bootstrap token and the roles kubeadm binds.
func TestAForeignKubeletJoinsAndRenews(t *testing.T) {
	c := start(t, pki.IssuerConfig{})
	joining := c.Bearer(c.bootstrapToken(t))
	key := newKey(t)
	mine := request(t, key, x509.CertificateRequest{Subject: nodeNamed("n1")})
	if _, err := ask(t, joining, capi.KubeAPIServerClientKubeletSignerName, mine, key, toAsk); !apierrors.IsForbidden(err) {
		t.Fatalf("before its role: %v", err)
	}
	c.bind(t, "kubeadm:kubelet-bootstrap", "system:node-bootstrapper", bootstrapGroup)
	name, err := ask(t, joining, capi.KubeAPIServerClientKubeletSignerName, mine, key, toAsk)
	must(t, err)
	c.bind(t, "kubeadm:node-autoapprove-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", bootstrapGroup)
	c.bind(t, "kubeadm:node-autoapprove-certificate-rotation", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", "system:nodes")
	first := c.certificate(t, name)
	node := c.as(t, first, key)
	if who := whoami(t, node); who.Username != "system:node:n1" || !slices.Contains(who.Groups, "system:nodes") {
		t.Fatalf("it is %+v", who)
	}
	if _, err := node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := node.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another node's object: %v", err)
	}

	next := newKey(t)
	name, err = ask(t, node, capi.KubeAPIServerClientKubeletSignerName, request(t, next, x509.CertificateRequest{Subject: nodeNamed("n1")}), next, toAsk)
	must(t, err)
	if who := whoami(t, c.as(t, c.certificate(t, name), next)); who.Username != "system:node:n1" {
		t.Errorf("renewed, it is %+v", who)
	}
	if m := c.get(t, name).Status.Conditions[0].Message; !strings.Contains(m, "self kubelet client") {
		t.Error(m)
	}
	_, err = ask(t, node, capi.KubeAPIServerClientKubeletSignerName, request(t, next, x509.CertificateRequest{Subject: nodeNamed("n2")}), next, toAsk)
	if !apierrors.IsForbidden(err) {
		t.Errorf("a node asks for another's certificate: %v", err)
	}

	serving, err := ask(t, node, capi.KubeletServingSignerName, request(t, next, x509.CertificateRequest{Subject: nodeNamed("n1"), DNSNames: []string{"n1"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 7)}}), next, toServe)
	must(t, err)
	spoof, err := ask(t, node, capi.KubeletServingSignerName, request(t, next, x509.CertificateRequest{Subject: nodeNamed("n1"), DNSNames: []string{"n1", "kubernetes.default.svc"}}), next, toServe)
	must(t, err)
	c.approve(t, serving)
	c.approve(t, spoof)
	block, _ := pem.Decode(c.certificate(t, serving))
	cert, err := x509.ParseCertificate(block.Bytes)
	must(t, err)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: c.PKI.Pool(), DNSName: "192.0.2.7", KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}); err != nil {
		t.Errorf("servers would not know the kubelet: %v", err)
	}
	if why := c.failure(t, spoof); !strings.Contains(why, "name or address of the API") {
		t.Error(why)
	}
}

func TestWhatTheAPIRefusesOfRequests(t *testing.T) {
	c := start(t, pki.IssuerConfig{})
	key := newKey(t)
	jane := request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}})
	create := func(signer string, data []byte, usages ...capi.KeyUsage) (string, error) {
		r, err := c.admin.CertificatesV1().CertificateSigningRequests().Create(t.Context(), &capi.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "t-"}, Spec: capi.CertificateSigningRequestSpec{Request: data, SignerName: signer, Usages: usages},
		}, metav1.CreateOptions{})
		if err != nil {
			return "", err
		}
		return r.Name, nil
	}
	const asks = capi.KubeAPIServerClientSignerName
	for what, try := range map[string]func() error{
		"noise":     func() error { _, err := create(asks, []byte("noise"), toAsk...); return err },
		"no usage":  func() error { _, err := create(asks, jane); return err },
		"odd usage": func() error { _, err := create(asks, jane, "flying"); return err },
		"legacy":    func() error { _, err := create("kubernetes.io/legacy-unknown", jane, toAsk...); return err },
		"masters": func() error {
			_, err := create(asks, request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"system:masters"}}}), toAsk...)
			return err
		},
		"half of PEM": func() error { _, err := create(asks, jane[:len(jane)/2], toAsk...); return err },
	} {
		if err := try(); !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	weak, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	must(t, err)
	for why, data := range map[string][]byte{
		"P-224":                                  request(t, weak, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane"}}),
		"reserved for servers":                   request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "balsa:server:" + strings.Repeat("0", 32)}}),
		"organization balsa:servers is reserved": request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "x", Organization: []string{"balsa:servers"}}}),
	} {
		name, err := create(asks, data, toAsk...)
		must(t, err)
		c.approve(t, name)
		if got := c.failure(t, name); !strings.Contains(got, why) {
			t.Errorf("got %q, want %q", got, why)
		}
	}
}

// otherCA writes a certificate authority of its own and returns its certificate, PEM.
func otherCA(t testing.TB, dir, name string) []byte {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(key)
	must(t, err)
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	must(t, os.WriteFile(filepath.Join(dir, "sign.crt"), certPEM, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "sign.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600))
	return certPEM
}

// The authority that signs is exchanged while everything runs, and what the one before signed stays good.
func TestTheSigningAuthorityIsExchanged(t *testing.T) {
	dir := t.TempDir()
	trusted := filepath.Join(dir, "clients.crt")
	first := otherCA(t, dir, "first")
	must(t, os.WriteFile(trusted, first, 0o600))
	trust, err := pki.OpenTrust(trusted, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- trust.Run(ctx) }()
	defer func() { cancel(); <-done }()
	c := start(t, pki.IssuerConfig{CertFile: filepath.Join(dir, "sign.crt"), KeyFile: filepath.Join(dir, "sign.key")}, func(cfg *control.Config) { cfg.ClientCAs = trust })
	user := func() (*kubernetes.Clientset, *x509.Certificate) {
		key := newKey(t)
		name, err := ask(t, c.admin, capi.KubeAPIServerClientSignerName, request(t, key, x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"devs"}}}), key, toAsk)
		must(t, err)
		c.approve(t, name)
		signed := c.certificate(t, name)
		pair, _ := pem.Decode(signed)
		cert, err := x509.ParseCertificate(pair.Bytes)
		must(t, err)
		return c.as(t, signed, key), cert
	}
	one, cert := user()
	if who := whoami(t, one); who.Username != "jane" || !slices.Contains(who.Groups, "devs") || cert.Issuer.CommonName != "first" {
		t.Errorf("%+v, signed by %s", who, cert.Issuer)
	}
	second := otherCA(t, dir, "second")
	must(t, os.WriteFile(trusted, slices.Concat(first, second), 0o600))
	two, cert := user()
	controltest.Await(t, "the second is believed", func() bool { return whoami(t, two).Username == "jane" })
	if who := whoami(t, one); who.Username != "jane" || cert.Issuer.CommonName != "second" {
		t.Errorf("%+v, signed by %s", who, cert.Issuer)
	}
	if _, err := c.HTTP(&tls.Certificate{}).Get("https://" + c.Address + "/version"); err != nil {
		t.Error(err)
	}
}
