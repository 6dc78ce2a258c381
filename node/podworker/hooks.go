package podworker

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// hookTarget is the container that a lifecycle hook belongs to.
type hookTarget struct {
	pod       *v1.Pod
	container *v1.Container
	id        string
	podIPs    []string
}

// runHook runs a postStart or preStop hook until it ends or ctx does.
func (h *Host) runHook(ctx context.Context, t hookTarget, hook *v1.LifecycleHandler) error {
	switch {
	case hook.Exec != nil:
		_, stderr, err := h.Runtime.ExecSync(ctx, t.id, hook.Exec.Command, 0)
		if err != nil {
			return fmt.Errorf("exec hook: %w: %s", err, stderr)
		}
		return nil
	case hook.HTTPGet != nil:
		return httpHook(ctx, t, hook.HTTPGet)
	case hook.TCPSocket != nil:
		return tcpHook(ctx, t, hook.TCPSocket)
	case hook.Sleep != nil:
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(hook.Sleep.Seconds) * time.Second):
			return nil
		}
	}
	return fmt.Errorf("the hook of container %s names no handler; it is not run", t.container.Name)
}

// hookPort returns the number of a port that is given by number or by name.
func hookPort(c *v1.Container, p intstr.IntOrString) (int, error) {
	if p.Type == intstr.Int {
		return p.IntValue(), nil
	}
	for _, cp := range c.Ports {
		if cp.Name == p.StrVal {
			return int(cp.ContainerPort), nil
		}
	}
	n, err := strconv.Atoi(p.StrVal)
	if err != nil {
		return 0, fmt.Errorf("couldn't find port: %s in container %s", p.StrVal, c.Name)
	}
	return n, nil
}

func hookAddress(t hookTarget, host string, port intstr.IntOrString) (string, error) {
	n, err := hookPort(t.container, port)
	if err != nil {
		return "", err
	}
	if host == "" {
		if len(t.podIPs) == 0 {
			return "", fmt.Errorf("the pod has no address yet to which its hook could connect")
		}
		host = t.podIPs[0]
	}
	return net.JoinHostPort(host, strconv.Itoa(n)), nil
}

func tcpHook(ctx context.Context, t hookTarget, h *v1.TCPSocketAction) error {
	addr, err := hookAddress(t, h.Host, h.Port)
	if err != nil {
		return err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	return c.Close()
}

func httpHook(ctx context.Context, t hookTarget, h *v1.HTTPGetAction) error {
	addr, err := hookAddress(t, h.Host, h.Port)
	if err != nil {
		return err
	}
	u, err := url.Parse(h.Path)
	if err != nil {
		return fmt.Errorf("the path of the hook is not valid: %w", err)
	}
	u.Scheme, u.Host = strings.ToLower(string(h.Scheme)), addr
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "kube-lifecycle")
	req.Header.Set("Accept", "*/*")
	for _, kv := range h.HTTPHeaders {
		if strings.EqualFold(kv.Name, "Host") {
			req.Host = kv.Value
			continue
		}
		req.Header.Add(kv.Name, kv.Value)
	}
	// The certificate is not verified, as upstream's kubelet does: no CA signs pods' certificates, and the connection stays on the node.
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 10<<10))
	if resp.StatusCode < 200 || resp.StatusCode >= 400 {
		return fmt.Errorf("the hook's HTTP server answered %s; 200 to 399 means success", resp.Status)
	}
	return nil
}
