package kubeconfig

import (
	"context"
	"crypto/tls"
	"net/url"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/balsahq/balsa/fault"
)

const (
	askStagger = 400 * time.Millisecond // without an answer, the next server is asked too
	askAll     = 5 * time.Second        // bounds the whole search
)

// AnsweringContext returns the context of the kubeconfig at path whose server answers
// first. It asks the current context's server first, then the others in the order of
// their names. It returns "" when the current one answers first, and when none answers:
// kubectl then reports the error of the current one.
func AnsweringContext(ctx context.Context, path string) string {
	c, err := clientcmd.LoadFromFile(path)
	if err != nil || len(c.Contexts) < 2 {
		return ""
	}
	names := []string{c.CurrentContext}
	for name := range c.Contexts {
		if name != c.CurrentContext {
			names = append(names, name)
		}
	}
	slices.Sort(names[1:])
	ctx, cancel := context.WithTimeout(ctx, askAll)
	defer cancel()
	found := make(chan string, len(names))
	var asking sync.WaitGroup
	defer asking.Wait()
	defer cancel()
	failed := make(chan struct{}, len(names))
	next, left := time.NewTimer(0), len(names)
	defer next.Stop()
	for asked := 0; left > 0; {
		select {
		case name := <-found:
			if name == c.CurrentContext {
				return ""
			}
			return name
		case <-failed:
			left--
			next.Reset(0)
		case <-next.C:
			if asked < len(names) {
				name := names[asked]
				asked++
				asking.Go(fault.Contained("kubeconfig", func() {
					if answers(ctx, c, name) {
						found <- name
					} else {
						failed <- struct{}{}
					}
				}))
				next.Reset(askStagger)
			}
		case <-ctx.Done():
			return ""
		}
	}
	return ""
}

// answers reports whether the server of a context completes a TLS handshake. A TCP
// connection does not tell: the kernel accepts connections for a stopped process.
func answers(ctx context.Context, c *clientcmdapi.Config, name string) bool {
	config, err := clientcmd.NewNonInteractiveClientConfig(*c, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return false
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return false
	}
	// The certificate is not verified, because no request follows; kubectl verifies it for its own connection.
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}}).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
