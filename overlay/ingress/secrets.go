package ingress

import (
	"context"
	"crypto/tls"
	"errors"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/fault/eventhandler"
	"github.com/balsahq/balsa/overlay/ingress/plan"
)

var errNoSecret = errors.New("there is no such Secret")

// secrets watches Secrets, each by a watch of its own, because a serving node may only read the Secrets that an Ingress or
// a Gateway names. It keeps the parsed key pairs.
type secrets struct {
	client  kubernetes.Interface
	changed func()

	mu      sync.Mutex
	by      map[types.NamespacedName]*secret
	running sync.WaitGroup
}

type secret struct {
	stop   context.CancelFunc
	loaded bool
	cert   *tls.Certificate
	err    error
}

func newSecrets(client kubernetes.Interface, changed func()) *secrets {
	return &secrets{client: client, changed: changed, by: map[types.NamespacedName]*secret{}}
}

// follow starts and stops watches, so that exactly the Secrets in want are watched. It reports whether all of them have
// been read or found missing.
func (s *secrets) follow(ctx context.Context, want map[types.NamespacedName]bool) (loaded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, one := range s.by {
		if !want[key] {
			one.stop()
			delete(s.by, key)
		}
	}
	loaded = true
	for key := range want {
		if s.by[key] == nil {
			ctx, stop := context.WithCancel(ctx)
			one := &secret{stop: stop}
			s.by[key] = one
			s.running.Go(func() { fault.KeepDo(ctx, "ingress/secrets", func(ctx context.Context) { s.watch(ctx, key, one) }) })
		}
		loaded = loaded && s.by[key].loaded
	}
	return loaded
}

// certificate returns the certificate in a Secret, or plan.ErrPending until the Secret has been read.
func (s *secrets) certificate(namespace, name string) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.by[types.NamespacedName{Namespace: namespace, Name: name}]
	if one == nil || !one.loaded {
		return nil, plan.ErrPending
	}
	return one.cert, one.err
}

func (s *secrets) close() {
	s.mu.Lock()
	for key, one := range s.by {
		one.stop()
		delete(s.by, key)
	}
	s.mu.Unlock()
	s.running.Wait()
}

// watch keeps one Secret until ctx ends.
func (s *secrets) watch(ctx context.Context, key types.NamespacedName, one *secret) {
	set := func(cert *tls.Certificate, err error) {
		s.mu.Lock()
		one.loaded, one.cert, one.err = true, cert, err
		s.mu.Unlock()
		s.changed()
	}
	read := func(o any) {
		if sec, ok := o.(*v1.Secret); ok {
			fault.Point("ingress/secrets")
			set(keyPair(sec))
		}
	}
	lw := cache.NewListWatchFromClient(s.client.CoreV1().RESTClient(), "secrets", key.Namespace, fields.OneTermEqualSelector("metadata.name", key.Name))
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: lw, ObjectType: &v1.Secret{}, Handler: eventhandler.Contain("ingress/secrets", cache.ResourceEventHandlerFuncs{
			AddFunc: read, UpdateFunc: func(_, o any) { read(o) }, DeleteFunc: func(any) { set(nil, errNoSecret) },
		}),
	})
	var wait sync.WaitGroup
	wait.Go(fault.Contained("ingress", func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			s.mu.Lock()
			absent := !one.loaded
			s.mu.Unlock()
			if absent {
				set(nil, errNoSecret)
			}
		}
	}))
	controller.Run(ctx.Done())
	wait.Wait()
}

// keyPair reads a Secret. Errors of crypto/tls do not quote the Secret.
func keyPair(s *v1.Secret) (*tls.Certificate, error) {
	cert, err := tls.X509KeyPair(s.Data[v1.TLSCertKey], s.Data[v1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	return &cert, nil
}
