package localcsi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/csi"
)

const (
	// Name is the driver's name, in StorageClasses and PersistentVolumes.
	Name = "csi.balsa.dev"
	// TopologyKey is the label whose value is the node that has a volume.
	TopologyKey = "topology.csi.balsa.dev/node"
)

// Config is what a Driver needs.
type Config struct {
	// Dir holds the volumes.
	Dir string
	// RootDir is the node agent's directory, below which the sockets are.
	RootDir  string
	NodeName string
	Version  string // of this program
	Logger   *slog.Logger
}

// Validate reports every fault of the configuration at once.
func (c *Config) Validate() error {
	var errs []error
	for name, value := range map[string]string{"Dir": c.Dir, "RootDir": c.RootDir, "NodeName": c.NodeName} {
		if value == "" {
			errs = append(errs, fmt.Errorf("localcsi: %s is empty", name))
		}
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return errors.Join(errs...)
}

// Driver serves volumes of this node's disk.
type Driver struct {
	cfg    Config
	store  *store
	mounts sync.Mutex
}

// New opens the directory of the volumes. It serves nothing before Run.
func New(cfg Config) (*Driver, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s, err := openStore(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("local volumes: %w", err)
	}
	return &Driver{cfg: cfg, store: s}, nil
}

func socketPath(rootDir string) string {
	return filepath.Join(rootDir, "plugins", Name, "csi.sock")
}

func registrationPath(rootDir string) string {
	return filepath.Join(rootDir, "plugins_registry", Name+"-reg.sock")
}

// Withdraw removes what registers the driver on a node that is not to serve it any more. Its volumes stay.
func Withdraw(rootDir string) error {
	if err := os.Remove(registrationPath(rootDir)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}

// Run serves until ctx ends. The registration's socket stays then, so that a restart takes the driver out of no CSINode.
func (d *Driver) Run(ctx context.Context) error {
	service, err := csi.Listen(socketPath(d.cfg.RootDir))
	if err != nil {
		return err
	}
	registration, err := csi.Listen(registrationPath(d.cfg.RootDir))
	if err != nil {
		service.Close()
		return err
	}
	volumes, registrar := grpc.NewServer(grpc.UnaryInterceptor(contained)), grpc.NewServer(grpc.UnaryInterceptor(contained))
	csipb.RegisterIdentityServer(volumes, identity{Driver: d})
	csipb.RegisterControllerServer(volumes, controller{Driver: d})
	csipb.RegisterNodeServer(volumes, nodeService{Driver: d})
	registerapi.RegisterRegistrationServer(registrar, registrarService{Driver: d})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(fault.ContainedErr("node/localcsi", func() error { return volumes.Serve(service) }))
	g.Go(fault.ContainedErr("node/localcsi", func() error { return registrar.Serve(registration) }))
	g.Go(fault.ContainedErr("node/localcsi", func() error {
		<-ctx.Done()
		registrar.Stop()
		volumes.GracefulStop()
		return nil
	}))
	return g.Wait()
}

// contained ends a call that panics, and no more.
func contained(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
	caught := fault.Contain("node/localcsi", func() error {
		out, err = next(ctx, req)
		return nil
	})
	if caught != nil {
		return nil, status.Error(codes.Internal, caught.Error())
	}
	return out, err
}

func (d *Driver) topology() *csipb.Topology {
	return &csipb.Topology{Segments: map[string]string{TopologyKey: d.cfg.NodeName}}
}

// identity is CSI's identity service.
type identity struct {
	csipb.UnimplementedIdentityServer
	*Driver
}

func (i identity) GetPluginInfo(context.Context, *csipb.GetPluginInfoRequest) (*csipb.GetPluginInfoResponse, error) {
	return &csipb.GetPluginInfoResponse{Name: Name, VendorVersion: i.cfg.Version}, nil
}

func (i identity) GetPluginCapabilities(context.Context, *csipb.GetPluginCapabilitiesRequest) (*csipb.GetPluginCapabilitiesResponse, error) {
	service := func(t csipb.PluginCapability_Service_Type) *csipb.PluginCapability {
		return &csipb.PluginCapability{Type: &csipb.PluginCapability_Service_{Service: &csipb.PluginCapability_Service{Type: t}}}
	}
	return &csipb.GetPluginCapabilitiesResponse{Capabilities: []*csipb.PluginCapability{
		service(csipb.PluginCapability_Service_CONTROLLER_SERVICE),
		service(csipb.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		{Type: &csipb.PluginCapability_VolumeExpansion_{VolumeExpansion: &csipb.PluginCapability_VolumeExpansion{Type: csipb.PluginCapability_VolumeExpansion_ONLINE}}},
	}}, nil
}

func (i identity) Probe(context.Context, *csipb.ProbeRequest) (*csipb.ProbeResponse, error) {
	return &csipb.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// registrarService says to the kubelet how the driver is reached.
type registrarService struct {
	registerapi.UnimplementedRegistrationServer
	*Driver
}

func (r registrarService) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.CSIPlugin, Name: Name, Endpoint: socketPath(r.cfg.RootDir), SupportedVersions: []string{"1.0.0"}}, nil
}

func (r registrarService) NotifyRegistrationStatus(_ context.Context, s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		r.cfg.Logger.Warn("the driver of local volumes is not registered; it is tried again", "err", s.Error)
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}
