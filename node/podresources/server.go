package podresources

import (
	"context"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/csi"
	"github.com/balsahq/balsa/node/deviceplugin"
)

const (
	unit = "node/pod resources"
	// callsPerSecond, burst and maxRequest bound what clients can ask for.
	callsPerSecond = 100
	burst          = 10
	maxRequest     = 4 << 10
)

// Config is where the answers come from.
type Config struct {
	// Dir is the directory of the socket, kubelet.sock.
	Dir string
	// Pods returns the pods that run or are about to run here.
	Pods func() []*v1.Pod
	// Devices returns the devices of a container; AllDevices those that can be given to pods.
	Devices    func(uid types.UID, container string) []deviceplugin.Listed
	AllDevices func() []deviceplugin.Listed
	// CPUs returns the CPUs that a container has for itself; AllCPUs those that containers can have.
	CPUs    func(uid types.UID, container string) cpuset.CPUSet
	AllCPUs func() cpuset.CPUSet
}

// Server answers the calls.
type Server struct {
	podresourcesapi.UnimplementedPodResourcesListerServer
	cfg   Config
	limit *rate.Limiter
}

// New returns a Server.
func New(cfg Config) *Server { return &Server{cfg: cfg, limit: rate.NewLimiter(callsPerSecond, burst)} }

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	socket, err := csi.Listen(filepath.Join(s.cfg.Dir, "kubelet.sock"))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(s.admit), grpc.MaxRecvMsgSize(maxRequest))
	podresourcesapi.RegisterPodResourcesListerServer(server, s)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(fault.ContainedErr(unit, func() error { return server.Serve(socket) }))
	g.Go(fault.ContainedErr(unit, func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	}))
	return g.Wait()
}

// admit refuses calls above the limit, and ends a call that panics and no more.
func (s *Server) admit(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
	if !s.limit.Allow() {
		return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
	}
	caught := fault.Contain(unit, func() error {
		out, err = next(ctx, req)
		return nil
	})
	if caught != nil {
		return nil, status.Error(codes.Internal, caught.Error())
	}
	return out, err
}

// List returns what each pod has.
func (s *Server) List(context.Context, *podresourcesapi.ListPodResourcesRequest) (*podresourcesapi.ListPodResourcesResponse, error) {
	out := &podresourcesapi.ListPodResourcesResponse{}
	for _, pod := range s.cfg.Pods() {
		out.PodResources = append(out.PodResources, s.ofPod(pod))
	}
	return out, nil
}

// Get returns what one pod has.
func (s *Server) Get(_ context.Context, req *podresourcesapi.GetPodResourcesRequest) (*podresourcesapi.GetPodResourcesResponse, error) {
	for _, pod := range s.cfg.Pods() {
		if pod.Namespace == req.PodNamespace && pod.Name == req.PodName {
			return &podresourcesapi.GetPodResourcesResponse{PodResources: s.ofPod(pod)}, nil
		}
	}
	return nil, status.Errorf(codes.NotFound, "pod %s in namespace %s not found", req.PodName, req.PodNamespace)
}

// GetAllocatableResources returns what pods can have, given or not.
func (s *Server) GetAllocatableResources(context.Context, *podresourcesapi.AllocatableResourcesRequest) (*podresourcesapi.AllocatableResourcesResponse, error) {
	return &podresourcesapi.AllocatableResourcesResponse{Devices: devicesOf(s.cfg.AllDevices()), CpuIds: idsOf(s.cfg.AllCPUs())}, nil
}

// ofPod leaves out init containers that have ended before the others start, as upstream does.
func (s *Server) ofPod(pod *v1.Pod) *podresourcesapi.PodResources {
	out := &podresourcesapi.PodResources{Name: pod.Name, Namespace: pod.Namespace}
	add := func(c *v1.Container) {
		out.Containers = append(out.Containers, &podresourcesapi.ContainerResources{
			Name: c.Name, Devices: devicesOf(s.cfg.Devices(pod.UID, c.Name)), CpuIds: idsOf(s.cfg.CPUs(pod.UID, c.Name))})
	}
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; podutil.IsRestartableInitContainer(c) {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return out
}

func devicesOf(list []deviceplugin.Listed) (out []*podresourcesapi.ContainerDevices) {
	for _, d := range list {
		c := &podresourcesapi.ContainerDevices{ResourceName: d.Resource, DeviceIds: []string{d.ID}}
		for _, n := range d.Nodes.IDs() {
			if c.Topology == nil {
				c.Topology = &podresourcesapi.TopologyInfo{}
			}
			c.Topology.Nodes = append(c.Topology.Nodes, &podresourcesapi.NUMANode{ID: int64(n)})
		}
		out = append(out, c)
	}
	return out
}

func idsOf(set cpuset.CPUSet) (out []int64) {
	for _, id := range set.List() {
		out = append(out, int64(id))
	}
	return out
}
