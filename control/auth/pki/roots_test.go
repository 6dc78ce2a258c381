package pki

import (
	"bytes"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// rotated are the key sets of one rotation's phases.
type rotated struct{ trust, issue, retire KeySet }

// newRotation makes new keys for a's cluster, and what each phase has of them.
func newRotation(t *testing.T, a *Authority) rotated {
	t.Helper()
	pair, cert, link, err := a.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	private, public, err := NewTokenKey()
	if err != nil {
		t.Fatal(err)
	}
	oldCA, oldKey := a.CA(), must(a.TokenKeyPEM())(t)
	links := append(link, a.Links()...)
	both := KeySet{Trusted: append(slices.Clone(oldCA), cert...), TokenKeys: append(slices.Clone(oldKey), public...), Links: links}
	issue := both
	issue.CA, issue.TokenKey = pair, private
	return rotated{both, issue, KeySet{CA: pair, TokenKey: private, Trusted: cert, TokenKeys: public, Links: links, Retired: oldCA}}
}

func use(t *testing.T, a *Authority, set KeySet) {
	t.Helper()
	if err := a.UseKeys(set); err != nil {
		t.Fatal(err)
	}
}

// shakes reports whether a client that trusts roots accepts a server that shows what a server of a's cluster does.
func shakes(t *testing.T, a *Authority, roots *x509.CertPool) error {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	go func() {
		defer there.Close()
		server := tls.Server(there, &tls.Config{GetCertificate: a.Serving().GetCertificate})
		_ = server.Handshake() // the client says what is wrong
		_, _ = io.Copy(io.Discard, server)
	}()
	// The standard library's own verification, as in clients that know nothing of rotations.
	return tls.Client(here, &tls.Config{RootCAs: roots, ServerName: "kubernetes"}).Handshake()
}

func TestARotationNeverBreaksTrust(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	kubelet := must(a.NodeServing("n1", nil, nil))(t)
	oldPin, oldRoots, oldAdmin := Pin(a.CACertificate().Raw), a.Pool(), a.Admin().Certificate()
	r := newRotation(t, a)
	byClient := func(c *x509.Certificate) error {
		opts, _ := a.ClientVerifyOptions()
		_, err := c.Verify(opts)
		return err
	}
	check := func(phase string, trusts int, issuedByOld, oldCounts bool) {
		t.Helper()
		for i := range 2 { // the second time after a restart
			if got := a.Trusts(); len(got) != trusts {
				t.Errorf("%s, start %d: trusts %d CAs, want %d", phase, i, len(got), trusts)
			}
			if (a.IssuedBy() == oldPin) != issuedByOld || a.IssuedBy() == "" {
				t.Errorf("%s, start %d: certificates are issued by %q", phase, i, a.IssuedBy())
			}
			if err := shakes(t, a, oldRoots); err != nil {
				t.Errorf("%s, start %d: a client that knows only the old CA: %v", phase, i, err)
			}
			if err := shakes(t, a, a.Pool()); err != nil {
				t.Errorf("%s, start %d: a client that has the bundle: %v", phase, i, err)
			}
			if err := byClient(oldAdmin); (err == nil) != oldCounts {
				t.Errorf("%s, start %d: the old administrator's certificate: %v", phase, i, err)
			}
			if err := byClient(a.Admin().Certificate()); err != nil {
				t.Errorf("%s, start %d: the administrator's certificate: %v", phase, i, err)
			}
			if crt := must(os.ReadFile(filepath.Join(dir, "ca.crt")))(t); len(PinsOf(crt)) != trusts || !bytes.Equal(crt, a.CA()) {
				t.Errorf("%s, start %d: ca.crt has %d CAs", phase, i, len(PinsOf(crt)))
			}
			if i == 0 {
				a = open(t, Config{Dir: dir})
				kubelet = must(a.NodeServing("n1", nil, nil))(t)
			}
		}
		if _, err := CheckBundle(must(a.Bundle())(t)); err != nil {
			t.Errorf("%s: the bundle for joining servers: %v", phase, err)
		}
	}
	check("before", 1, true, true)
	use(t, a, r.trust)
	check("trust", 2, true, true)
	use(t, a, r.issue)
	check("issue", 2, false, true)
	if kubelet.Certificate().CheckSignatureFrom(a.CACertificate()) != nil {
		t.Error("the node's certificate is of the old CA")
	}
	use(t, a, r.retire)
	check("retire", 1, false, false)
	if n := len(a.TokenKeys()); n != 1 || KeyID(a.ServiceAccountKey().Public()) != PublicKeyID(r.trust.TokenKeys[len(r.trust.TokenKeys)/2:]) {
		t.Errorf("%d keys verify tokens", n)
	}
}

func TestUsingTheSameKeysAgainChangesNothing(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	r := newRotation(t, a)
	use(t, a, r.issue)
	before, serial := must(a.Bundle())(t), a.Serving().Certificate().SerialNumber
	use(t, a, r.issue)
	if !bytes.Equal(before, must(a.Bundle())(t)) || a.Serving().Certificate().SerialNumber.Cmp(serial) != 0 {
		t.Error("files or certificates are new")
	}
}

func TestALateServerGoesToTheLastPhaseAtOnce(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	r := newRotation(t, a)
	use(t, a, r.retire)
	if a = open(t, Config{Dir: dir}); len(a.Trusts()) != 1 || a.IssuedBy() != PinOf(r.retire.Trusted) {
		t.Errorf("trusts %d CAs, certificates of %q", len(a.Trusts()), a.IssuedBy())
	}
}

func TestClientsFindThroughSeveralRotations(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	oldRoots := a.Pool()
	for range MaxLinks {
		r := newRotation(t, a)
		use(t, a, r.trust)
		use(t, a, r.issue)
		use(t, a, r.retire)
		if err := shakes(t, a, oldRoots); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTokensOfBothCAsJoinUntilOneIsRetired(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	old := Pin(a.CACertificate().Raw)
	shown := func() (raw [][]byte) { return must(a.Serving().GetCertificate(nil))(t).Certificate }
	r := newRotation(t, a)
	use(t, a, r.trust)
	if err := PinnedTo(old, nil)(shown(), nil); err != nil {
		t.Error("trust:", err)
	}
	use(t, a, r.issue)
	for _, pin := range []string{old, Pin(a.CACertificate().Raw)} {
		if err := PinnedTo(pin, nil)(shown(), nil); err != nil {
			t.Error("issue:", err)
		}
	}
	use(t, a, r.retire)
	if err := PinnedTo(Pin(a.CACertificate().Raw), nil)(shown(), nil); err != nil {
		t.Error("retire:", err)
	}
	if err := PinnedTo(old, nil)(shown(), nil); !errors.Is(err, ErrPin) || !strings.Contains(err.Error(), "balsa token create") {
		t.Error("a token of the retired CA:", err)
	}
}

func TestAServerThatJoinsDuringARotationHasBothKeys(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	r := newRotation(t, a)
	use(t, a, r.issue)
	dir := filepath.Join(t.TempDir(), "tls")
	if err := WriteBundle(dir, must(a.Bundle())(t)); err != nil {
		t.Fatal(err)
	}
	b := open(t, Config{Dir: dir})
	if !slices.Equal(a.Trusts(), b.Trusts()) || !slices.Equal(a.TokenKeyIDs(), b.TokenKeyIDs()) || !bytes.Equal(a.Links(), b.Links()) {
		t.Error("the new server trusts something else")
	}
}

func TestAnAgentThatWasOffProvesItselfToTheNewCA(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	creds := must(OpenCredentials(CredentialsConfig{Path: filepath.Join(t.TempDir(), "c.pem")}))(t)
	cert := must(a.SignNode(must(creds.Request())(t), "n1"))(t)
	if err := creds.Install(cert); err != nil {
		t.Fatal(err)
	}
	use(t, a, newRotation(t, a).retire)
	digest := sha256.Sum256([]byte("x"))
	shown, proof, err := creds.Prove(digest)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Holder(shown, digest, proof); err != nil {
		t.Error(err)
	}
	stranger := open(t, Config{Dir: t.TempDir()})
	foreign := must(stranger.SignNode(newCSR(t, elliptic.P256()), "n1"))(t)
	if _, err := a.Holder(foreign, digest, proof); !errors.Is(err, ErrBadRequest) {
		t.Error("a certificate of another cluster:", err)
	}
}

func TestADamagedTrustBundleIsRefused(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	use(t, a, newRotation(t, a).trust)
	if err := os.WriteFile(filepath.Join(dir, TrustFile), a.Admin().KeyPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), TrustFile) {
		t.Error(err)
	}
}

func TestALinkEndsWithTheCAThatSignedIt(t *testing.T) {
	now := time.Now()
	a := open(t, Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	now = now.Add(5 * 365 * 24 * time.Hour)
	_, _, link, err := a.NewCA()
	if err != nil {
		t.Fatal(err)
	}
	list := must(certificates(link))(t)
	if len(list) != 1 || list[0].NotAfter.After(a.CACertificate().NotAfter) {
		t.Error("the link outlives its CA")
	}
}
