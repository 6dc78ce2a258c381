package encryption

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/balsahq/balsa/fault"
)

// These constants bound rewriting: objects listed at once, and objects written at once.
const (
	rewritePage    = 500
	rewriteWorkers = 8
)

// Rewriter rewrites stored objects that are not encrypted as they would be now. It writes through the API, so admission
// and quota apply. The content of an object never leaves the server. It may be interrupted and started again, because
// rewritten objects are not stale any more.
type Rewriter struct {
	clients *kubernetes.Clientset
	objects metadata.Interface
	mapper  meta.RESTMapper
}

// NewRewriter returns a Rewriter with the rights of config, which must be an administrator's.
func NewRewriter(config *rest.Config) (*Rewriter, error) {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Rewriter{clients, objects, restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(clients.Discovery()))}, nil
}

// Status returns the encryption status of the server that config names.
func (r *Rewriter) Status(ctx context.Context) (s Status, err error) {
	return s, ask(ctx, r.clients, nil, &s)
}

func ask(ctx context.Context, clients *kubernetes.Clientset, query map[string]string, answer any) error {
	req := clients.Discovery().RESTClient().Get().AbsPath(Path)
	for k, v := range query {
		req = req.Param(k, v)
	}
	data, err := req.DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("ask the API server: %w", err)
	}
	return json.Unmarshal(data, answer)
}

// Rewritten counts the objects of one resource that were rewritten, and those that failed.
type Rewritten struct{ Done, Failed int }

// Rewrite rewrites the stale objects of one resource. Objects that are refused are counted, and the error contains the
// first refusal; all others are written.
func (r *Rewriter) Rewrite(ctx context.Context, resource string) (Rewritten, error) {
	gr := schema.ParseGroupResource(resource)
	gvr, err := r.mapper.ResourceFor(gr.WithVersion(""))
	if err != nil {
		return Rewritten{}, fmt.Errorf("%s: %w", resource, err)
	}
	var done, failed atomic.Int64
	var first atomic.Pointer[error]
	for after := ""; ; {
		var page Stale
		query := map[string]string{"stale": resource, "after": after, "limit": strconv.Itoa(rewritePage)}
		if err := ask(ctx, r.clients, query, &page); err != nil {
			return Rewritten{int(done.Load()), int(failed.Load())}, err
		}
		g, gctx := errgroup.WithContext(ctx)
		g.SetLimit(rewriteWorkers)
		for _, name := range page.Names {
			g.Go(fault.ContainedErr("control/encryption", func() error {
				if err := r.touch(gctx, gvr, name); err != nil {
					failed.Add(1)
					err = fmt.Errorf("%s %s: %w", resource, name, err)
					first.CompareAndSwap(nil, &err)
					return ctx.Err()
				}
				done.Add(1)
				return nil
			}))
		}
		err := g.Wait()
		if after = page.Last; err == nil && after != "" {
			continue
		}
		result := Rewritten{int(done.Load()), int(failed.Load())}
		if e := first.Load(); err == nil && e != nil {
			err = fmt.Errorf("%d not rewritten, the first: %w", result.Failed, *e)
		}
		return result, err
	}
}

// touch sends a patch that changes nothing. The server writes the object only if it is stale.
func (r *Rewriter) touch(ctx context.Context, gvr schema.GroupVersionResource, name string) error {
	namespace, object, namespaced := strings.Cut(name, "/")
	if !namespaced {
		namespace, object = "", name
	}
	_, err := r.objects.Resource(gvr).Namespace(namespace).Patch(ctx, object, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil // deleted meanwhile
	}
	return err
}

// askTime bounds the request for one server's status.
const askTime = 10 * time.Second

// Agree asks every server of the cluster for the checksum of its configuration. The error names the servers with
// another one: they could not read objects written with a key that they lack.
func Agree(ctx context.Context, config *rest.Config) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var own Status
	if err := ask(ctx, clients, nil, &own); err != nil {
		return err
	}
	slices, err := clients.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return fmt.Errorf("list the API servers: %w", err)
	}
	var errs []error
	for _, address := range addresses(slices.Items) {
		other := rest.CopyConfig(config)
		other.Host, other.Timeout = "https://"+address, askTime
		var s Status
		clients, err := kubernetes.NewForConfig(other)
		if err == nil {
			err = ask(ctx, clients, nil, &s)
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("cannot read the encryption status of server %s: %w", address, err))
		case s.Configuration != own.Configuration:
			errs = append(errs, fmt.Errorf("server %s has another encryption configuration than %s: give all servers the same file first", address, config.Host))
		}
	}
	return errors.Join(errs...)
}

// addresses returns the endpoints as host:port.
func addresses(slices []discoveryv1.EndpointSlice) (out []string) {
	for _, s := range slices {
		for _, port := range s.Ports {
			for _, e := range s.Endpoints {
				for _, a := range e.Addresses {
					if port.Port != nil {
						out = append(out, net.JoinHostPort(a, strconv.Itoa(int(*port.Port))))
					}
				}
			}
		}
	}
	return out
}
