package pki

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
)

const testServer = "0123456789abcdef0123456789abcdef"

func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func newCSR(t testing.TB, curve elliptic.Curve) []byte {
	t.Helper()
	key := must(ecdsa.GenerateKey(curve, rand.Reader))(t)
	return must(NewCSR(key))(t)
}

func TestABundleMakesAPeerOfTheSameCluster(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	bundle := must(a.Bundle())(t)
	ca := must(CheckBundle(bundle))(t)
	if ca[0] != Pin(a.CACertificate().Raw) {
		t.Fatal("another CA in the bundle")
	}
	dir := filepath.Join(t.TempDir(), "tls")
	for range 2 { // the second time it changes nothing
		if err := WriteBundle(dir, bundle); err != nil {
			t.Fatal(err)
		}
	}
	b := open(t, Config{Dir: dir})
	if !bytes.Equal(a.CA(), b.CA()) || !bytes.Equal(a.FrontProxyCA(), b.FrontProxyCA()) {
		t.Fatal("other CAs")
	}
	if bytes.Equal(a.Admin().KeyPEM(), b.Admin().KeyPEM()) || bytes.Contains(bundle, a.Admin().KeyPEM()) {
		t.Fatal("a leaf key travelled")
	}
	if _, err := b.Serving().Certificate().Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: "kubernetes"}); err != nil {
		t.Fatal(err)
	}
	other := open(t, Config{Dir: t.TempDir()})
	before := must(os.ReadFile(filepath.Join(other.cfg.Dir, "ca.pem")))(t)
	if err := WriteBundle(other.cfg.Dir, bundle); !errors.Is(err, ErrOtherIdentity) {
		t.Fatalf("over another cluster's keys: %v", err)
	}
	if !bytes.Equal(before, must(os.ReadFile(filepath.Join(other.cfg.Dir, "ca.pem")))(t)) {
		t.Fatal("another cluster's CA was overwritten")
	}
	for _, name := range append(sharedFiles, "peer.pem") {
		if name == "peer.pem" {
			must(b.Peer(testServer))(t)
		}
		if st := must(os.Stat(filepath.Join(dir, name)))(t); st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v", name, st.Mode())
		}
	}
}

func TestABundleBegunIsFinishedByOpen(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	bundle := must(a.Bundle())(t)
	files := must(decodeBundle(bundle))(t)
	for n := 0; n <= len(sharedFiles); n++ { // power goes after n files
		dir := t.TempDir()
		if err := atomicfile.WriteContent(filepath.Join(dir, pendingBundle), bundle); err != nil {
			t.Fatal(err)
		}
		for _, name := range sharedFiles[:n] {
			if err := atomicfile.WriteContent(filepath.Join(dir, name), files[name]); err != nil {
				t.Fatal(err)
			}
		}
		b := open(t, Config{Dir: dir})
		if !bytes.Equal(a.CA(), b.CA()) || !bytes.Equal(a.FrontProxyCA(), b.FrontProxyCA()) {
			t.Fatalf("after %d files: another cluster", n)
		}
		if _, err := os.Stat(filepath.Join(dir, pendingBundle)); !errors.Is(err, os.ErrNotExist) {
			t.Fatalf("after %d files: still pending: %v", n, err)
		}
	}
}

func TestTheSignerDecidesTheNames(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	greedy := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		DNSNames: []string{"kubernetes"}, IPAddresses: []net.IP{net.IPv4(10, 96, 0, 1)},
	}, key))(t)
	for what, certPEM := range map[string][]byte{
		"server":  must(a.SignServer(greedy, testServer))(t),
		"client":  must(a.SignNode(greedy, "n1"))(t),
		"serving": must(a.SignNodeServing(greedy, "n1", []net.IP{net.IPv4(192, 0, 2, 7)}))(t),
	} {
		block, _ := pem.Decode(certPEM)
		c := must(x509.ParseCertificate(block.Bytes))(t)
		if c.VerifyHostname("kubernetes") == nil || c.VerifyHostname("10.96.0.1") == nil || c.IsCA {
			t.Errorf("%s: %v %v", what, c.DNSNames, c.IPAddresses)
		}
		if IsServers(c) != (what == "server") {
			t.Errorf("%s: counts as a server's: %v", what, IsServers(c))
		}
		_, asClient := c.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		_, asServer := c.Verify(x509.VerifyOptions{Roots: a.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		if (asClient == nil) != (what != "serving") || (asServer == nil) != (what != "client") {
			t.Errorf("%s: client %v, server %v", what, asClient, asServer)
		}
		if what == "server" && (c.Subject.CommonName != "balsa:server:"+testServer || c.VerifyHostname(testServer+".server.balsa") != nil) {
			t.Errorf("%s: %v %v", what, c.Subject, c.DNSNames)
		}
		if what == "serving" && c.VerifyHostname("192.0.2.7") != nil {
			t.Errorf("%s: %v", what, c.IPAddresses)
		}
	}
}

func TestBadRequestsAreRefused(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	good := newCSR(t, elliptic.P256())
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))(t)
	block, _ := pem.Decode(good)
	forged := bytes.Clone(block.Bytes)
	forged[len(forged)-1] ^= 1
	for what, csr := range map[string][]byte{
		"empty": nil, "garbage": []byte("hello"), "forged signature": forged, "RSA": must(NewCSR(rsaKey))(t),
		"P-521": newCSR(t, elliptic.P521()), "two": append(bytes.Clone(good), good...), "a certificate": a.CA(),
		"large": append(bytes.Clone(good), make([]byte, maxCSR)...),
	} {
		if _, err := a.SignNode(csr, "n1"); !errors.Is(err, ErrBadRequest) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, name := range []string{"", "UPPER", "a/b", "kubernetes", "kubernetes.default", "kubernetes.default.svc.cluster.local", "localhost", testServer + ".server.balsa"} {
		if _, err := a.SignNode(good, name); !errors.Is(err, ErrBadRequest) {
			t.Errorf("node %q: %v", name, err)
		}
	}
	for _, id := range []string{"", "x", strings.ToUpper(testServer), testServer + "0"} {
		if _, err := a.SignServer(good, id); !errors.Is(err, ErrBadRequest) {
			t.Errorf("server %q: %v", id, err)
		}
	}
}

// handshake returns what a client with the pin says about a server that shows the leaf.
func handshake(t *testing.T, leaf *Leaf, pin string) error {
	t.Helper()
	here, there := net.Pipe()
	defer here.Close()
	defer there.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = tls.Server(there, &tls.Config{GetCertificate: leaf.GetCertificate}).Handshake()
		there.Close()
	}()
	err := tls.Client(here, &tls.Config{InsecureSkipVerify: true, VerifyPeerCertificate: PinnedTo(pin, nil)}).Handshake()
	here.Close()
	<-done
	return err
}

func TestAPinAcceptsItsClustersServersAlone(t *testing.T) {
	a, b := open(t, Config{Dir: t.TempDir()}), open(t, Config{Dir: t.TempDir()})
	pin := Pin(a.CACertificate().Raw)
	if len(pin) != PinLength {
		t.Fatal(pin)
	}
	if err := handshake(t, a.Serving(), pin); err != nil {
		t.Error(err)
	}
	if err := handshake(t, must(a.Peer(testServer))(t), pin); err != nil {
		t.Error(err)
	}
	err := handshake(t, b.Serving(), pin)
	var wrong *PinError
	if !errors.As(err, &wrong) || wrong.Want != pin || wrong.Got != Pin(b.CACertificate().Raw) {
		t.Errorf("another cluster: %v", err)
	}
	if err := handshake(t, must(a.NodeServing("n1", nil, nil))(t), pin); !errors.Is(err, ErrPin) {
		t.Errorf("a node in the middle: %v", err)
	}
	// The right CA shown beside another's leaf.
	raw := [][]byte{b.Serving().Certificate().Raw, a.CACertificate().Raw}
	if err := PinnedTo(pin, nil)(raw, nil); !errors.Is(err, ErrPin) {
		t.Errorf("a chain that does not hold: %v", err)
	}
	if err := PinnedTo(pin, nil)(nil, nil); !errors.Is(err, ErrPin) {
		t.Errorf("nothing shown: %v", err)
	}
}

func TestSubjectsFollowTheAddress(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir(), IPs: []net.IP{net.IPv4(192, 0, 2, 1)}})
	before := a.Serving().Certificate()
	if err := a.SetSubjects(nil, []net.IP{net.IPv4(192, 0, 2, 1)}); err != nil || !a.Serving().Certificate().Equal(before) {
		t.Fatalf("made anew for nothing: %v", err)
	}
	if err := a.SetSubjects([]string{"h"}, []net.IP{net.IPv4(192, 0, 2, 2)}); err != nil {
		t.Fatal(err)
	}
	c := a.Serving().Certificate()
	if c.VerifyHostname("192.0.2.2") != nil || c.VerifyHostname("h") != nil || c.VerifyHostname("kubernetes") != nil || c.VerifyHostname("192.0.2.1") == nil {
		t.Fatalf("%v %v", c.DNSNames, c.IPAddresses)
	}
}

func TestCredentialsLiveThrough400Days(t *testing.T) {
	dir, caDir := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		a := open(t, Config{Dir: caDir})
		c := must(OpenCredentials(CredentialsConfig{Path: filepath.Join(dir, "sub", "node.pem")}))(t)
		if c.Valid() || c.Certificate() != nil {
			t.Fatal("a certificate from nowhere")
		}
		csr := must(c.Request())(t)
		again := must(OpenCredentials(c.cfg))(t) // the process died here
		if k1, k2 := must(requestedKey(csr))(t), must(requestedKey(must(again.Request())(t)))(t); !k1.Equal(k2) {
			t.Fatal("another key after a crash")
		}
		if err := c.Install(must(a.SignNode(newCSR(t, elliptic.P256()), "n1"))(t)); !errors.Is(err, ErrForeignCertificate) {
			t.Fatalf("another key's certificate: %v", err)
		}
		first := must(a.SignNode(csr, "n1"))(t)
		for range 2 {
			if err := c.Install(first); err != nil {
				t.Fatal(err)
			}
		}
		began, fails, renewed := time.Now(), 3, 0
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- c.Run(ctx, func(_ context.Context, csr []byte) ([]byte, error) {
				if !c.Valid() {
					t.Error("asked with a certificate that is not valid")
				}
				if fails > 0 {
					fails--
					return nil, errors.New("no server answers")
				}
				renewed++
				return a.SignNode(csr, "n1")
			})
		}()
		for day := range 400 {
			time.Sleep(24 * time.Hour)
			if !c.Valid() {
				t.Fatalf("day %d: expired", day)
			}
		}
		cancel()
		if err := <-done; err != nil || renewed != 1 || time.Since(began) < 400*24*time.Hour {
			t.Fatalf("%v, renewed %d times", err, renewed)
		}
		if fresh := must(OpenCredentials(c.cfg))(t); !fresh.Certificate().Equal(c.Certificate()) {
			t.Fatal("the renewed certificate is not on disk")
		}
		if left := must(filepath.Glob(filepath.Join(dir, "sub", "*")))(t); len(left) != 1 {
			t.Fatalf("left behind: %v", left)
		}
	})
}

func TestCredentialsFollowTheWallClock(t *testing.T) {
	dir, caDir := t.TempDir(), t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var jump atomic.Int64
		now := func() time.Time { return time.Now().Add(time.Duration(jump.Load())) }
		a := open(t, Config{Dir: caDir, Now: now})
		c := must(OpenCredentials(CredentialsConfig{Path: filepath.Join(dir, "node.pem"), Now: now, Logger: slog.New(slog.DiscardHandler)}))(t)
		if err := c.Install(must(a.SignNode(must(c.Request())(t), "n1"))(t)); err != nil {
			t.Fatal(err)
		}
		var fails, asked atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() {
			done <- c.Run(ctx, func(_ context.Context, csr []byte) ([]byte, error) {
				if asked.Add(1); fails.Load() > 0 {
					fails.Add(-1)
					return nil, errors.New("no server answers")
				}
				return a.SignNode(csr, "n1")
			})
		}()
		synctest.Wait()
		began := time.Now()
		for i, by := range []time.Duration{400 * 24 * time.Hour, -24 * time.Hour, -376 * 24 * time.Hour} {
			jump.Add(int64(by))
			if i == 0 {
				c.Wake() // as the clock's watch does
			} else if _, err := c.GetClientCertificate(nil); err != nil { // a handshake
				t.Fatal(err)
			}
			synctest.Wait()
			if !c.Valid() {
				t.Fatalf("after a jump of %v: not valid", by)
			}
		}
		if waited := time.Since(began); waited != 0 || asked.Load() != 2 {
			t.Fatalf("took %v, asked %d times", waited, asked.Load())
		}
		fails.Store(100)
		jump.Add(int64(400 * 24 * time.Hour))
		for range 50 {
			_, _ = c.GetCertificate(nil)
			synctest.Wait()
		}
		if asked.Load() != 3 {
			t.Fatalf("handshakes asked %d times while no server answers", asked.Load()-2)
		}
		time.Sleep(time.Hour)
		if !c.Valid() || asked.Load() < 100 {
			t.Fatalf("valid: %v after %d attempts in an hour", c.Valid(), asked.Load())
		}
		cancel()
		<-done
	})
}

func TestANewClustersEncryptionKeyGoesWithTheBundle(t *testing.T) {
	made := 0
	config := func() ([]byte, error) { made++; return []byte("the key"), nil }
	dir := t.TempDir()
	a := open(t, Config{Dir: dir, Encryption: config})
	if got := must(os.ReadFile(a.EncryptionFile()))(t); string(got) != "the key" || made != 1 {
		t.Fatalf("%q, made %d times", got, made)
	}
	if mode := must(os.Stat(a.EncryptionFile()))(t).Mode().Perm(); mode != 0o600 {
		t.Errorf("mode %o", mode)
	}
	open(t, Config{Dir: dir, Encryption: config})
	if old := open(t, Config{Dir: t.TempDir()}); old.EncryptionFile() != "" {
		t.Error("a file that nobody asked for")
	} else if again := open(t, Config{Dir: old.cfg.Dir, Encryption: config}); again.EncryptionFile() != "" || made != 1 {
		t.Error("a cluster that began without encryption has been given a key")
	}

	joiner := t.TempDir()
	for _, content := range []string{"the key", "another key"} { // the administrator has replaced it meanwhile
		if err := os.WriteFile(a.EncryptionFile(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := WriteBundle(joiner, must(a.Bundle())(t)); err != nil {
			t.Fatal(err)
		}
		b := open(t, Config{Dir: joiner, Encryption: config})
		if got := must(os.ReadFile(b.EncryptionFile()))(t); string(got) != content || made != 1 {
			t.Fatalf("the joiner has %q, made %d times", got, made)
		}
	}
	bundle := must(a.Bundle())(t)
	longer := append(bundle[:len(bundle)-sha256.Size:len(bundle)-sha256.Size], 0)
	sum := sha256.Sum256(longer)
	if _, err := splitBundle(append(longer, sum[:]...)); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "1 bytes too many") {
		t.Errorf("a bundle with more behind: %v", err)
	}
}

func FuzzBundle(f *testing.F) {
	a, err := Open(Config{Dir: f.TempDir()})
	if err != nil {
		f.Fatal(err)
	}
	good := must(a.Bundle())(f)
	f.Add(good)
	f.Add(good[:len(good)/2])
	f.Add([]byte(bundleMagic))
	f.Add(good[:len(good)-sha256.Size])
	f.Fuzz(func(t *testing.T, data []byte) {
		// Also with a checksum that is right, so that what lies behind it is reached.
		for _, bundle := range [][]byte{data, sealed(data)} {
			files, err := splitBundle(bundle)
			if err == nil && len(files) != len(sharedFiles) || err != nil && !errors.Is(err, ErrDamaged) {
				t.Fatal(len(files), err)
			}
		}
	})
}

func FuzzCSR(f *testing.F) {
	f.Add(newCSR(f, elliptic.P256()))
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := requestedKey(data); err != nil && !errors.Is(err, ErrBadRequest) {
			t.Fatal(err)
		}
	})
}

func sealed(body []byte) []byte {
	sum := sha256.Sum256(body)
	return append(bytes.Clone(body), sum[:]...)
}
