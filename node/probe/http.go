package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

const (
	userAgent    = "kube-probe/1.36" // the Kubernetes minor whose probes these are
	maxRedirects = 10
)

// transport asks once and hangs up. Certificates are not verified: a probe asks whether the container answers, at an
// address that no certificate names.
var transport = &http.Transport{
	TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
	TLSHandshakeTimeout: 10 * time.Second,
	DisableKeepAlives:   true,
	DisableCompression:  true,
	ForceAttemptHTTP2:   true,
	DialContext:         dialer().DialContext,
}

// sameHost follows redirects within the host only; one to elsewhere is the answer.
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errors.New("stopped after 10 redirects")
	}
	return nil
}

// httpCheck succeeds when a GET is answered with a status from 200 to 399.
func httpCheck(ctx context.Context, get *v1.HTTPGetAction, c *v1.Container, podIP string, timeout time.Duration) outcome {
	req, err := httpRequest(ctx, get, c, podIP)
	if err != nil {
		return outcome{err: err}
	}
	client := &http.Client{Timeout: timeout, Transport: transport, CheckRedirect: sameHost}
	res, err := client.Do(req)
	if err != nil {
		return failed("%s", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxOutput))
	switch {
	case err != nil:
		return failed("%s", err)
	case res.StatusCode >= 300 && res.StatusCode < 400:
		return outcome{result: Success, warning: true, output: clip("Probe terminated redirects, Response body: " + string(body))}
	case res.StatusCode >= 200 && res.StatusCode < 300:
		return outcome{result: Success, output: clip(string(body))}
	}
	// The body is not shown: it could carry secrets of the container into events.
	return failed("HTTP probe failed with statuscode: %d", res.StatusCode)
}

func httpRequest(ctx context.Context, get *v1.HTTPGetAction, c *v1.Container, podIP string) (*http.Request, error) {
	port, err := resolvePort(get.Port, c)
	if err != nil {
		return nil, err
	}
	scheme, host := "http", podIP
	if get.Scheme != "" {
		scheme = strings.ToLower(string(get.Scheme))
	}
	if get.Host != "" {
		host = get.Host
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = scheme, hostPort(host, port)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header.Set("User-Agent", userAgent)
	}
	if accept, ok := req.Header["Accept"]; !ok {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}
