package kubeletapi

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsv1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/balsahq/balsa/node/counters"
)

// Runtime is the part of k8s.io/cri-api/pkg/apis.RuntimeService that the API needs; that interface satisfies it.
type Runtime interface {
	ContainerStatus(ctx context.Context, containerID string, verbose bool) (*runtimeapi.ContainerStatusResponse, error)
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (stdout, stderr []byte, err error)
	Exec(ctx context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error)
	Attach(ctx context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error)
	PortForward(ctx context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error)
}

// Backend is the node agent as this API sees it.
type Backend interface {
	// Pods returns the pods bound to this node, with the status the agent knows now (not the API server's copy).
	// The objects are read-only.
	Pods() []*v1.Pod
	// Pod returns one of them.
	Pod(namespace, name string) (*v1.Pod, bool)
	// RunningPods returns what the runtime runs, whether or not the API knows it.
	RunningPods(ctx context.Context) ([]*v1.Pod, error)
	// SandboxID returns the CRI id of the pod's ready sandbox.
	SandboxID(podUID types.UID) (string, bool)
	// ContainerDone returns a channel that is closed once the container no longer runs; closed already for one
	// that the agent does not know.
	ContainerDone(containerID string) <-chan struct{}
	// Runtime is the container runtime.
	Runtime() Runtime
	// Summary returns the statistics of the node and its pods.
	Summary(ctx context.Context) (*statsv1.Summary, error)
	// Configz is what /configz shows under "kubeletconfig"; nil means an empty object.
	Configz() any
}

// Config is what a Server needs.
type Config struct {
	Backend  Backend
	NodeName string
	// Address is where to listen, as host:port; the usual port is 10250.
	Address string
	// TLS carries the serving certificate and, for client certificates, ClientAuth = tls.RequestClientCert.
	TLS *tls.Config
	// Authenticator returns the user of a request: x509 certificates by the cluster's CA, bearer tokens by TokenReview (see NewAuthenticator).
	Authenticator authenticator.Request
	// Authorizer decides, usually by SubjectAccessReview (see NewAuthorizer).
	Authorizer authorizer.Authorizer
	// NetCheck serves POST /balsa/netcheck, for whoever may use nodes/proxy; nil means that there is no such thing.
	NetCheck http.Handler
	// LocalVolumes serves POST /balsa/csi/{call} with calls for the driver of this node's volumes, for whoever may use
	// nodes/proxy; nil means that there is no such thing.
	LocalVolumes http.Handler
	// NodeLogs serves /logs/, with paths below it, for whoever may use nodes/log; nil means that this is disabled.
	NodeLogs http.Handler
	// Counters are shown at /metrics beside the process's own, and count the requests served; nil makes new ones.
	Counters *counters.Counters
	// Debug serves what the process tells of itself, by path: /balsa/log for callers that may use nodes/log, other paths for
	// those that may use nodes/proxy.
	Debug map[string]http.Handler
	// Containers and Probes are shown at /metrics/cadvisor and /metrics/probes; nil shows nothing.
	Containers, Probes prometheus.Collector
	Logger             *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Backend == nil {
		errs = append(errs, errors.New("kubeletapi: Backend is nil"))
	}
	if c.NodeName == "" {
		errs = append(errs, errors.New("kubeletapi: NodeName is empty"))
	}
	if c.Authenticator == nil {
		errs = append(errs, errors.New("kubeletapi: Authenticator is nil"))
	}
	if c.Authorizer == nil {
		errs = append(errs, errors.New("kubeletapi: Authorizer is nil"))
	}
	return errors.Join(errs...)
}
