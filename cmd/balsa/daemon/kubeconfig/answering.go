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

// How long `balsa kubectl` waits for one server before it asks the next beside
// it, and for all.
const (
	askStagger = 400 * time.Millisecond
	askAll     = 5 * time.Second
)

// AnsweringContext returns the first context of a kubeconfig whose server
// answers: the current one, then the others by name. It is "" when that is the
// current one, or when none answers and kubectl may say why.
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

// answers reports whether the server of a context ends a handshake. A stopped
// process accepts connections and does not.
func answers(ctx context.Context, c *clientcmdapi.Config, name string) bool {
	config, err := clientcmd.NewNonInteractiveClientConfig(*c, name, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
	if err != nil {
		return false
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return false
	}
	// Nothing is sent: whether the server is the right one is kubectl's to see.
	conn, err := (&tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}}}).DialContext(ctx, "tcp", target.Host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
