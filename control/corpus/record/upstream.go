package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/balsahq/balsa/control/corpus"
)

// patience is how long upstream may take until it is ready.
const patience = 2 * time.Minute

// start runs etcd and kube-apiserver on loopback, with settings that a server here has too, until stop is called.
func start(ctx context.Context, programs string) (server corpus.Server, stop func(), err error) {
	dir, err := os.MkdirTemp("", "corpus")
	if err != nil {
		return server, nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var running []*exec.Cmd
	stop = func() {
		cancel()
		for _, c := range running {
			_ = c.Wait() // it was told to end
		}
		_ = os.RemoveAll(dir)
	}
	defer func() {
		if err != nil {
			stop()
		}
	}()
	ports, err := freePorts(3)
	if err != nil {
		return server, nil, err
	}
	if err := files(dir); err != nil {
		return server, nil, err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	for _, args := range [][]string{{
		"etcd", "--data-dir", dir + "/etcd", "--listen-client-urls", client, "--advertise-client-urls", client,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer, "--unsafe-no-fsync",
	}, {
		"kube-apiserver", "--etcd-servers=" + client, "--bind-address=127.0.0.1", "--secure-port=" + ports[2], "--cert-dir=" + dir,
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + dir + "/sa.key",
		"--service-account-signing-key-file=" + dir + "/sa.key", "--token-auth-file=" + dir + "/tokens.csv",
		"--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true",
		"--enable-admission-plugins=NodeRestriction", "--advertise-address=192.0.2.1",
	}} {
		c, err := run(ctx, filepath.Join(programs, args[0]), args[1:], dir)
		if err != nil {
			return server, nil, err
		}
		running = append(running, c)
	}
	server = corpus.Server{URL: "https://127.0.0.1:" + ports[2], Client: insecure()}
	return server, stop, ready(ctx, server)
}

func run(ctx context.Context, program string, args []string, dir string) (*exec.Cmd, error) {
	c := exec.CommandContext(ctx, program, args...)
	c.Dir = dir
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 10 * time.Second
	log, err := os.Create(filepath.Join(dir, filepath.Base(program)+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	c.Stdout, c.Stderr = log, log
	return c, c.Start()
}

func files(dir string) error {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	text := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(dir+"/sa.key", text, 0o600); err != nil {
		return err
	}
	return os.WriteFile(dir+"/tokens.csv", []byte(corpus.Tokens), 0o600)
}

func freePorts(n int) (out []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		out = append(out, port)
	}
	return out, nil
}

func ready(ctx context.Context, s corpus.Server) error {
	limit, look := time.After(patience), time.NewTicker(200*time.Millisecond)
	defer look.Stop()
	for {
		if a, err := s.Ask(ctx, corpus.Request{Method: "GET", Path: "/readyz"}); err == nil && a.Status == 200 {
			return nil
		}
		select {
		case <-look.C:
		case <-limit:
			return fmt.Errorf("kube-apiserver is not ready after %v", patience)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// insecure is a client for a server whose certificate it made for itself, on loopback.
func insecure() *http.Client {
	//nolint:gosec // see above
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}}
}
