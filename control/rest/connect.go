package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	translator "k8s.io/apiserver/pkg/util/proxy"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"
)

// connecter is a subresource that clients connect to. methods are its HTTP methods; path says whether the rest of the
// URL path belongs to the connected server.
type connecter struct {
	methods []string
	options func() runtime.Object
	path    bool
	connect func(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error)
}

var _ rest.Connecter = (*connecter)(nil)

// New implements rest.Storage.
func (c *connecter) New() runtime.Object { return c.options() }

// Destroy implements rest.Storage.
func (c *connecter) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (c *connecter) ConnectMethods() []string { return c.methods }

// NewConnectOptions implements rest.Connecter.
func (c *connecter) NewConnectOptions() (runtime.Object, bool, string) {
	if c.path {
		return c.options(), true, "path"
	}
	return c.options(), false, ""
}

// Connect implements rest.Connecter.
func (c *connecter) Connect(ctx context.Context, name string, options runtime.Object, responder rest.Responder) (http.Handler, error) {
	return c.connect(ctx, name, options, responder)
}

var (
	proxyMethods  = []string{"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"}
	streamMethods = []string{"GET", "POST"} // browsers open WebSockets with GET
)

// podStreams are exec, attach and portforward. The kubelet speaks SPDY and, if its Node declares it, WebSocket. For the
// other nodes a WebSocket client is translated to SPDY here.
func podStreams(pods *genericregistry.Store, r *nodeTransports, a authorizer.Authorizer) map[string]rest.Storage {
	return map[string]rest.Storage{
		"exec": stream(a, func() runtime.Object { return &api.PodExecOptions{} },
			func(ctx context.Context, name string, o runtime.Object) (*url.URL, *client.ConnectionInfo, *translator.Options, error) {
				e, ok := o.(*api.PodExecOptions)
				if !ok {
					return nil, nil, nil, fmt.Errorf("invalid options object: %#v", o)
				}
				u, info, err := pod.ExecLocation(ctx, pods, r, name, e)
				return u, info, &translator.Options{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Tty: e.TTY}, err
			}),
		"attach": stream(a, func() runtime.Object { return &api.PodAttachOptions{} },
			func(ctx context.Context, name string, o runtime.Object) (*url.URL, *client.ConnectionInfo, *translator.Options, error) {
				e, ok := o.(*api.PodAttachOptions)
				if !ok {
					return nil, nil, nil, fmt.Errorf("invalid options object: %#v", o)
				}
				u, info, err := pod.AttachLocation(ctx, pods, r, name, e)
				return u, info, &translator.Options{Stdin: e.Stdin, Stdout: e.Stdout, Stderr: e.Stderr, Tty: e.TTY}, err
			}),
		"portforward": stream(a, func() runtime.Object { return &api.PodPortForwardOptions{} },
			func(ctx context.Context, name string, o runtime.Object) (*url.URL, *client.ConnectionInfo, *translator.Options, error) {
				e, ok := o.(*api.PodPortForwardOptions)
				if !ok {
					return nil, nil, nil, fmt.Errorf("invalid options object: %#v", o)
				}
				u, info, err := pod.PortForwardLocation(ctx, pods, r, name, e)
				return u, info, nil, err
			}),
	}
}

// locate returns the kubelet's URL. streams is nil for portforward, whose WebSocket form is a tunnel.
type locate func(ctx context.Context, name string, o runtime.Object) (u *url.URL, info *client.ConnectionInfo, streams *translator.Options, err error)

const kubeletWebSockets = "ExtendWebSocketsToKubelet"

func stream(a authorizer.Authorizer, options func() runtime.Object, find locate) *connecter {
	connect := func(ctx context.Context, name string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
		if err := mayCreate(ctx, a); err != nil {
			return nil, err
		}
		location, info, streams, err := find(ctx, name, o)
		if err != nil {
			return nil, err
		}
		direct := upgrade(location, info.Transport, responder)
		for _, f := range info.NodeFeatures {
			if f == kubeletWebSockets {
				return direct, nil
			}
		}
		if streams == nil {
			return translator.NewTranslatingHandler(direct, translator.NewTunnelingHandler(direct), wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
		}
		translated := translator.NewStreamTranslatorHandler(location, info.Transport, 0, *streams)
		return translator.NewTranslatingHandler(direct, translated, wsstream.IsWebSocketRequestWithStreamCloseProtocol), nil
	}
	return &connecter{methods: streamMethods, options: options, connect: connect}
}

func upgrade(location *url.URL, transport http.RoundTripper, responder rest.Responder) *utilproxy.UpgradeAwareHandler {
	return utilproxy.NewUpgradeAwareHandler(location, transport, false, true, utilproxy.NewErrorResponder(responder))
}

// mayCreate checks the right to create the subresource. SPDY opens a stream with POST, which is authorized as "create",
// WebSocket with GET, which is authorized as "get": without this check a client with only the right to get could open a
// stream by WebSocket.
func mayCreate(ctx context.Context, a authorizer.Authorizer) error {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return apierrors.NewInternalError(errors.New("no request info in context"))
	}
	if info.Verb == "create" {
		return nil
	}
	attrs, err := filters.GetAuthorizerAttributes(ctx)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("authorizer attributes: %w", err))
	}
	decision, reason, err := a.Authorize(ctx, asCreate{attrs})
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		return apierrors.NewForbidden(schema.GroupResource{Group: info.APIGroup, Resource: info.Resource}, info.Name, errors.New(reason))
	}
	return nil
}

type asCreate struct{ authorizer.Attributes }

func (asCreate) GetVerb() string { return "create" }

func podProxy(pods *genericregistry.Store, r *nodeTransports) *connecter {
	return &connecter{methods: proxyMethods, options: func() runtime.Object { return &api.PodProxyOptions{} }, path: true,
		connect: func(ctx context.Context, name string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
			opts, ok := o.(*api.PodProxyOptions)
			if !ok {
				return nil, fmt.Errorf("invalid options object: %#v", o)
			}
			host, err := hostOf(ctx, pods, name)
			if err != nil {
				return nil, err
			}
			location, transport, err := pod.ResourceLocation(ctx, pods, r.forNode(host).plain, name)
			if err != nil {
				return nil, err
			}
			return proxyTo(location, opts.Path, transport, responder), nil
		}}
}

// hostOf returns the node of the pod in "name", "name:port" or "scheme:name:port".
func hostOf(ctx context.Context, pods *genericregistry.Store, id string) (string, error) {
	_, name, _, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return "", apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", id))
	}
	p, err := read[*api.Pod](ctx, pods, name)
	if err != nil {
		return "", err
	}
	return p.Spec.NodeName, nil
}

func nodeProxy(nodes *genericregistry.Store, r *nodeTransports) *connecter {
	return &connecter{methods: proxyMethods, options: func() runtime.Object { return &api.NodeProxyOptions{} }, path: true,
		connect: func(ctx context.Context, name string, o runtime.Object, responder rest.Responder) (http.Handler, error) {
			opts, ok := o.(*api.NodeProxyOptions)
			if !ok {
				return nil, fmt.Errorf("invalid options object: %#v", o)
			}
			_, host, _, valid := utilnet.SplitSchemeNamePort(name)
			if !valid {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", name))
			}
			if _, err := read[*api.Node](ctx, nodes, host); err != nil {
				return nil, err
			}
			location, transport, err := node.ResourceLocation(nodes, r, r.forNode(host).plain, ctx, name)
			if err != nil {
				return nil, err
			}
			return proxyTo(location, opts.Path, transport, responder), nil
		}}
}

func proxyTo(location *url.URL, path string, transport http.RoundTripper, responder rest.Responder) http.Handler {
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	return utilproxy.NewUpgradeAwareHandler(location, transport, true, false, utilproxy.NewErrorResponder(responder))
}
