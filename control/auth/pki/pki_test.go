package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func open(t *testing.T, cfg Config) *Authority {
	t.Helper()
	a, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAClusterIsMadeOnceAndThenTheSame(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	cfg := Config{Dir: dir, Names: []string{"host.example"}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}, ServiceIP: net.IPv4(10, 96, 0, 1)}
	start := time.Now()
	a := open(t, cfg)
	t.Logf("first start: %v", time.Since(start))
	start = time.Now()
	b := open(t, cfg)
	t.Logf("second start: %v", time.Since(start))
	if !bytes.Equal(a.CA(), b.CA()) || !bytes.Equal(a.Serving().CertPEM(), b.Serving().CertPEM()) || !bytes.Equal(a.Admin().KeyPEM(), b.Admin().KeyPEM()) {
		t.Fatal("the second start made something new")
	}
	for _, host := range []string{"localhost", "127.0.0.1", "kubernetes", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "10.96.0.1", "192.0.2.1", "host.example"} {
		if _, err := b.Serving().Certificate().Verify(x509.VerifyOptions{Roots: b.Pool(), DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 9 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", f, st.Mode(), err)
		}
	}
}

func TestWhoTheCertificatesAreFor(t *testing.T) {
	a := open(t, Config{Dir: t.TempDir()})
	node, err := a.NodeClient("n1")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := a.NodeServing("n1", nil, []net.IP{net.IPv4(192, 0, 2, 9)})
	if err != nil {
		t.Fatal(err)
	}
	if err := serving.Certificate().VerifyHostname("192.0.2.9"); err != nil {
		t.Error(err)
	}
	for _, c := range []struct {
		leaf    *Leaf
		cn, org string
	}{{a.Admin(), "kubernetes-admin", "system:masters"}, {node, "system:node:n1", "system:nodes"}, {a.KubeletClient(), "kube-apiserver-kubelet-client", "system:masters"}} {
		s := c.leaf.Certificate().Subject
		if s.CommonName != c.cn || len(s.Organization) != 1 || s.Organization[0] != c.org {
			t.Errorf("%v, want %s of %s", s, c.cn, c.org)
		}
		opts, _ := a.ClientVerifyOptions()
		if _, err := c.leaf.Certificate().Verify(opts); err != nil {
			t.Errorf("%s: %v", c.cn, err)
		}
	}
	opts, _ := a.ClientVerifyOptions()
	if _, err := a.FrontProxyClient().Certificate().Verify(opts); err == nil {
		t.Error("the front proxy's certificate counts as a user's")
	}
	opts, _ = a.FrontProxyVerifyOptions()
	if _, err := a.FrontProxyClient().Certificate().Verify(opts); err != nil {
		t.Error(err)
	}
}

func TestADamagedFileIsNamed(t *testing.T) {
	for _, name := range []string{"ca.pem", "front-proxy-ca.pem", "service-account.key", "apiserver.pem", "admin.pem"} {
		for what, damage := range map[string]func([]byte) []byte{
			"truncated": func(b []byte) []byte { return b[:len(b)/3] },
			"empty":     func([]byte) []byte { return nil },
			"flipped":   func(b []byte) []byte { b[60] ^= 0x55; return b },
		} {
			if what == "flipped" && (name == "apiserver.pem" || name == "admin.pem") {
				continue // a leaf that parses and is not the CA's is made anew
			}
			t.Run(name+" "+what, func(t *testing.T) {
				dir := t.TempDir()
				open(t, Config{Dir: dir})
				path := filepath.Join(dir, name)
				data, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, damage(data), 0o600); err != nil {
					t.Fatal(err)
				}
				if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path) {
					t.Fatalf("got %v, want damage of %s", err, path)
				}
			})
		}
	}
}

func TestALostCAIsNotReplacedBehindTheClustersBack(t *testing.T) {
	dir := t.TempDir()
	open(t, Config{Dir: dir})
	if err := os.Remove(filepath.Join(dir, "ca.pem")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Config{Dir: dir}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "ca.pem is missing") {
		t.Fatal(err)
	}
}

func TestCertificatesAreRenewedWhileInUse(t *testing.T) {
	now := time.Now()
	a := open(t, Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	srv := &tls.Config{GetCertificate: a.Serving().GetCertificate}
	serial := func() string {
		c, err := srv.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf.SerialNumber.String()
	}
	first := serial()
	now = now.Add(200 * 24 * time.Hour)
	if renewed, err := a.Renew(); err != nil || len(renewed) != 0 || serial() != first {
		t.Fatalf("too early: %v, %v", renewed, err)
	}
	now = now.Add(50 * 24 * time.Hour)
	renewed, err := a.Renew()
	if err != nil || len(renewed) != 4 || serial() == first {
		t.Fatalf("%v, %v", renewed, err)
	}
	if b := open(t, Config{Dir: a.cfg.Dir, Now: a.cfg.Now}); b.Serving().Certificate().SerialNumber.String() != serial() {
		t.Fatal("the renewed certificate is not on disk")
	}
}

func TestHandshakesFollowTheWallClock(t *testing.T) {
	now := time.Now()
	a := open(t, Config{Dir: t.TempDir(), Now: func() time.Time { return now }})
	shown := func() *x509.Certificate {
		c, err := a.Serving().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}
		return c.Leaf
	}
	last := shown()
	for _, jump := range []time.Duration{400 * 24 * time.Hour, -24 * time.Hour, -375 * 24 * time.Hour} {
		changed := a.Changed()
		now = now.Add(jump)
		c := shown()
		if now.Before(c.NotBefore) || now.After(c.NotAfter) {
			t.Fatalf("after a jump of %v: valid from %v to %v, it is %v", jump, c.NotBefore, c.NotAfter, now)
		}
		if same := jump == -24*time.Hour; c.Equal(last) != same {
			t.Fatalf("after a jump of %v: renewed is %v", jump, !c.Equal(last))
		} else if !same {
			<-changed
		}
		last = c
		client, err := a.KubeletClient().GetClientCertificate(nil)
		if err != nil || now.After(client.Leaf.NotAfter) || now.Before(client.Leaf.NotBefore) {
			t.Fatalf("the client certificate does not follow: %v", err)
		}
	}
	if b := open(t, Config{Dir: a.cfg.Dir, Now: a.cfg.Now}); !b.Serving().Certificate().Equal(last) {
		t.Fatal("the renewed certificate is not on disk")
	}
	now = now.Add(CALifetime)
	if !shown().Equal(last) {
		t.Fatal("a certificate was made that its CA's end makes useless")
	}
}

func TestAHandshakeDoesNotInsistOnAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, jump := t.TempDir(), time.Duration(0)
		var log bytes.Buffer
		a := open(t, Config{Dir: dir, Now: func() time.Time { return time.Now().Add(jump) }, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		first := a.Serving().Certificate()
		a.Serving().path = filepath.Join(dir, "missing", "apiserver.pem")
		jump = 400 * 24 * time.Hour
		for range 3 {
			if c, err := a.Serving().GetCertificate(nil); err != nil || !c.Leaf.Equal(first) {
				t.Fatalf("%v, %v", c, err)
			}
		}
		if n := strings.Count(log.String(), "cannot renew a certificate"); n != 1 {
			t.Fatalf("tried %d times: %s", n, &log)
		}
		a.Serving().path = filepath.Join(dir, "apiserver.pem")
		time.Sleep(firstRetry)
		if c, err := a.Serving().GetCertificate(nil); err != nil || c.Leaf.Equal(first) {
			t.Fatalf("not renewed when it could be: %v", err)
		}
	})
}

func TestRunLooksWhenTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		jump := time.Duration(0)
		a := open(t, Config{Dir: t.TempDir(), Now: func() time.Time { return time.Now().Add(jump) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- a.Run(ctx) }()
		synctest.Wait()
		jump = 400 * 24 * time.Hour
		began, changed := time.Now(), a.Changed()
		a.Wake()
		<-changed
		if waited := time.Since(began); waited != 0 {
			t.Errorf("renewed only after %v", waited)
		}
		cancel()
		<-done
	})
}

func TestAClockSetBack(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	var log bytes.Buffer
	cfg := Config{Dir: dir, Now: func() time.Time { return now }, Logger: slog.New(slog.NewTextHandler(&log, nil))}
	a := open(t, cfg)
	now = now.Add(-24 * time.Hour)
	b := open(t, cfg)
	if !strings.Contains(log.String(), "clock") {
		t.Error("no warning")
	}
	if !bytes.Equal(a.Serving().CertPEM(), b.Serving().CertPEM()) {
		t.Error("a new certificate for a clock a day behind")
	}
	now = now.Add(-48 * time.Hour)
	if _, err := Open(cfg); !errors.Is(err, ErrClock) {
		t.Fatalf("three days back: %v", err)
	}
}
