package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/balsahq/balsa/e2e/host"
)

const (
	port          = "6443"
	startPatience = 2 * time.Minute
	look          = 50 * time.Millisecond
	good, bad     = "good", "bad" // the two clients may do everything, but are not administrators, whom the limits do not apply to
)

// target is the server on its machine.
type target struct {
	host  *host.Host
	cmd   *exec.Cmd
	admin *kubernetes.Clientset
	roots *x509.CertPool
	dir   string
}

// newTarget starts a server without an agent.
func newTarget(ctx context.Context, balsa string) (*target, error) {
	t := &target{}
	if err := t.open(ctx, balsa); err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

func (t *target) open(ctx context.Context, balsa string) (err error) {
	if t.dir, err = os.MkdirTemp("", "balsa-badapi-"); err != nil {
		return err
	}
	tokens := filepath.Join(t.dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(good+","+good+",1\n"+bad+","+bad+",2\n"), 0o600); err != nil {
		return err
	}
	if t.host, err = host.New(host.Config{Balsa: balsa}); err != nil {
		return err
	}
	if balsa, err = filepath.Abs(balsa); err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(t.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	t.cmd = t.host.Command(context.Background(), balsa, append([]string{"server", "--disable-agent", "--token-auth-file=" + tokens}, t.host.Flags()...)...)
	t.cmd.SysProcAttr, t.cmd.Stdout, t.cmd.Stderr = &syscall.SysProcAttr{Setsid: true}, log, log
	if err := t.cmd.Start(); err != nil {
		t.cmd = nil
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for {
		err := t.prepare(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the server does not become ready: %w\n%s", err, t.log())
		case <-time.After(look):
		}
	}
}

// prepare gives both clients all rights.
func (t *target) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cfg, err := t.host.RESTConfig()
	if err != nil {
		return err
	}
	t.roots = x509.NewCertPool()
	if !t.roots.AppendCertsFromPEM(cfg.CAData) {
		return errors.New("the kubeconfig has no CA")
	}
	if t.admin, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "badapi"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}}
	for _, u := range []string{good, bad} {
		binding.Subjects = append(binding.Subjects, rbacv1.Subject{Kind: "User", Name: u, APIGroup: rbacv1.GroupName})
	}
	if _, err := t.admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	code, err := t.send(ctx, t.client(good), shot{method: http.MethodGet, path: "/readyz"})
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz: %d", code)
	}
	return err
}

func (t *target) log() string {
	raw, _ := os.ReadFile(filepath.Join(t.dir, "log"))
	return string(raw[max(0, len(raw)-3000):])
}

func (t *target) close() error {
	var faults []error
	if t.cmd != nil {
		_ = t.cmd.Process.Kill()
		_ = t.cmd.Wait() // it reports that it was killed
	}
	if t.host != nil {
		faults = append(faults, t.host.Close())
	}
	return errors.Join(append(faults, os.RemoveAll(t.dir))...)
}

// alive returns an error if the server's process has ended.
func (t *target) alive() error {
	if err := t.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		return fmt.Errorf("the server has ended: %w\n%s", err, t.log())
	}
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", t.cmd.Process.Pid))
	if err != nil || bytes.Contains(state, []byte(") Z ")) {
		return fmt.Errorf("the server has ended\n%s", t.log())
	}
	return nil
}

// memory returns the server's memory now and its peak since forget, in bytes.
func (t *target) memory() (now, most int64) {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", t.cmd.Process.Pid))
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(f[1], 10, 64)
		switch f[0] {
		case "VmRSS:":
			now = kib << 10
		case "VmHWM:":
			most = kib << 10
		}
	}
	return now, most
}

// forget resets the peak of memory.
func (t *target) forget() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", t.cmd.Process.Pid), []byte("5"), 0o200)
}

func (t *target) address() string { return net.JoinHostPort(t.host.Addr.String(), port) }

// dial opens a TLS connection for one protocol.
func (t *target) dial(ctx context.Context, protocol string) (*tls.Conn, error) {
	raw, err := t.host.Dial(ctx, "tcp", t.address())
	if err != nil {
		return nil, err
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: t.roots, ServerName: t.host.Addr.String(), NextProtos: []string{protocol}})
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(err, raw.Close())
	}
	return conn, nil
}

// bearer adds a client's token to every request.
type bearer struct {
	token string
	*http.Transport
}

// RoundTrip implements http.RoundTripper.
func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return b.Transport.RoundTrip(r)
}

// client returns an HTTP client with its own connections.
func (t *target) client(token string) *http.Client {
	return &http.Client{Transport: bearer{token, &http.Transport{
		DialContext: t.host.Dial, TLSClientConfig: &tls.Config{RootCAs: t.roots}, ForceAttemptHTTP2: true, DisableCompression: true,
	}}}
}

// shot is one request.
type shot struct {
	method, path string
	kind         string // of the body
	body         []byte
	header       http.Header
}

// send sends a request and drops the body of the answer.
func (t *target) send(ctx context.Context, c *http.Client, s shot) (int, error) {
	req, err := http.NewRequestWithContext(ctx, s.method, "https://"+t.address()+s.path, bytes.NewReader(s.body))
	if err != nil {
		return 0, err
	}
	for k, v := range s.header {
		req.Header[k] = v
	}
	if s.kind != "" {
		req.Header.Set("Content-Type", s.kind)
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
