package podworker

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	criapi "k8s.io/cri-api/pkg/apis"

	"github.com/balsahq/balsa/node/cgroup"
	"github.com/balsahq/balsa/node/counters"
	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/images"
	"github.com/balsahq/balsa/node/probe"
	"github.com/balsahq/balsa/node/userns"
	"github.com/balsahq/balsa/node/volume"
)

// Volumes is what workers need of the volume manager.
type Volumes interface {
	SetUp(ctx context.Context, pod *v1.Pod) (volume.Mounts, error)
	ContainerMounts(pod *v1.Pod, c *v1.Container, mounts volume.Mounts, env []*runtimeapi.KeyValue) ([]*runtimeapi.Mount, func(), error)
	ContainerDevices(c *v1.Container, mounts volume.Mounts) ([]*runtimeapi.Device, error)
	Env(ctx context.Context, pod *v1.Pod, c *v1.Container, in volume.EnvInput) ([]*runtimeapi.KeyValue, error)
	TearDown(ctx context.Context, podUID types.UID) error
}

// Probes is what workers need of the probe manager.
type Probes interface {
	Start(probe.Target)
	Stop(podUID types.UID, container string)
	StopKind(podUID types.UID, container string, kinds ...probe.Kind)
	StopPod(podUID types.UID)
}

// Cgroups is what workers need of the machine's control groups.
type Cgroups interface {
	Path(uid types.UID, qos v1.PodQOSClass) string
	Apply(uid types.UID, qos v1.PodQOSClass, l cgroup.Limits) (string, error)
	Remove(uid types.UID) error
	Read(uid types.UID, qos v1.PodQOSClass) (cgroup.Limits, error)
	MemoryUsage(uid types.UID, qos v1.PodQOSClass) (int64, error)
}

// Host is what the workers of one node share. It does not change once a worker has begun.
type Host struct {
	Client      kubernetes.Interface
	Pods        corelisters.PodLister // of this node
	Runtime     criapi.RuntimeService
	RuntimeName string // prefix of container IDs, such as "containerd"
	// Features says what a runtime handler can; nil when nothing is known of it.
	Features func(handler string) *runtimeapi.RuntimeHandlerFeatures
	// Handlers returns the names of the runtime\'s handlers; empty when the runtime does not say.
	Handlers  func() []string
	Images    *images.Puller
	Config    *criconfig.Config
	Volumes   Volumes
	Probes    Probes
	Cgroups   Cgroups
	Users     *userns.Ranges
	Allocator Allocator
	Claims    Claims
	Counters  *counters.Counters
	Events    record.EventRecorder
	// NetworkReady returns when the network lets a pod's packets through as it should; nil: pods need not wait.
	NetworkReady func(ctx context.Context, pod *v1.Pod, addresses []netip.Addr) error
	// ResizeAsked is called when a pod asks for other resources than the node has judged. The answer comes by Worker.Allot.
	ResizeAsked func()
	// Published is called with each new View of a pod, by its worker and when the worker is made.
	Published func(types.UID, *View)

	HostIPs        []string
	MemoryCapacity int64 // of the machine, in bytes
	PodPIDs        int64 // processes a pod may have; 0 means no limit
	Logger         *slog.Logger
}

// runtimeHandler returns the handler of the pod's RuntimeClass, "" when the pod names none.
func (h *Host) runtimeHandler(ctx context.Context, pod *v1.Pod) (string, error) {
	name := pod.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	rc, err := h.Client.NodeV1().RuntimeClasses().Get(ctx, *name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("failed to get RuntimeClass %q: %w", *name, err)
	}
	if err != nil {
		return "", err
	}
	if have := h.Handlers(); len(have) > 0 && !slices.Contains(have, rc.Handler) {
		return "", fmt.Errorf("the runtime of this node has no handler %q, which RuntimeClass %q names; it has %s", rc.Handler, *name, strings.Join(have, ", "))
	}
	return rc.Handler, nil
}

// userNamespace returns the user namespace of a pod: the host's, or a new one with a range of IDs for this pod. A pod with
// hostUsers: false never gets the host's: when the runtime cannot make one, that is an error.
func (h *Host) userNamespace(pod *v1.Pod, handler string) (*runtimeapi.UserNamespace, error) {
	if !criconfig.HasUserNamespace(pod) {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	can := h.Features(handler).GetUserNamespaces()
	switch {
	case !can && handler == "":
		return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
	case !can:
		return nil, fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
	}
	ids, err := h.Users.Take(pod.UID)
	if err != nil {
		return nil, err
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: criconfig.IDMapping(ids), Gids: criconfig.IDMapping(ids)}, nil
}
