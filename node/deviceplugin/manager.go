package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/csi"
	"github.com/balsahq/balsa/node/topology"
)

// unit names the work of this package in the counts of panics.
const unit = "node/device plug-ins"

// Bounds of what plug-ins make the agent keep.
const (
	maxResources = 128
	maxDevices   = 1 << 16 // of one resource
	maxID        = 256     // bytes of a device's ID
	maxAnswer    = 256 << 10
	maxRequest   = 64 << 10 // of a registration
)

// gracePeriod is how long a resource keeps its capacity after its plug-in has gone. It is upstream's.
const gracePeriod = 5 * time.Minute

// Config is what a Manager needs.
type Config struct {
	// Dir holds kubelet.sock, where plug-ins register, and their own sockets.
	Dir string
	// NUMANodes are those of the machine.
	NUMANodes topology.Nodes
	// Changed is called when the capacity of a resource may have changed.
	Changed func()
	// HealthChanged is called with the pods that have a device whose health has changed.
	HealthChanged func([]types.UID)
	Logger        *slog.Logger
}

// Manager knows the plug-ins of this machine and what their devices are given to.
type Manager struct {
	cfg       Config
	log       *slog.Logger
	connected chan *plugin  // registered, and not yet followed
	slots     chan struct{} // registrations under way

	disk sync.Mutex // held over the writing of the file
	mu   sync.Mutex
	// resources never shrinks but by a resource that has expired, see resourceFor.
	resources map[string]*resource
	pods      map[types.UID]podGrants
}

// resource is one resource name and its devices.
type resource struct {
	plugin   *plugin // nil while none is connected
	preStart bool    // PreStartContainer has to be called
	devices  map[string]device
	left     time.Time     // when the plug-in went
	turn     chan struct{} // holds a token while a pod has its turn
}

// device is what a plug-in says of one device.
type device struct {
	healthy bool
	nodes   topology.Nodes // NUMA nodes; none when the plug-in does not say
}

func newResource(now time.Time) *resource { return &resource{left: now, turn: make(chan struct{}, 1)} }

// expired reports whether the plug-in has been gone for so long that its devices do not count as present.
func (r *resource) expired(now time.Time) bool {
	return r.plugin == nil && now.Sub(r.left) > gracePeriod
}

// usable reports whether a device can be given to a container.
func (r *resource) usable(d device) bool { return r.plugin != nil && d.healthy }

// New returns a Manager with the allocations that the file in cfg.Dir holds.
func New(cfg Config) (*Manager, error) {
	if cfg.Dir == "" || cfg.Changed == nil || cfg.HealthChanged == nil || cfg.Logger == nil {
		return nil, errors.New("deviceplugin: Dir, Changed, HealthChanged or Logger is not set")
	}
	m := &Manager{
		cfg: cfg, log: cfg.Logger, connected: make(chan *plugin), slots: make(chan struct{}, 8),
		resources: map[string]*resource{}, pods: map[types.UID]podGrants{},
	}
	return m, m.load(time.Now())
}

// Run serves registrations and follows the plug-ins until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	if err := m.removeSockets(); err != nil {
		return err
	}
	socket, err := csi.Listen(filepath.Join(m.cfg.Dir, filepath.Base(pluginapi.KubeletSocket)))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(contained), grpc.MaxRecvMsgSize(maxRequest))
	pluginapi.RegisterRegistrationServer(server, registrar{m: m})
	g, ctx := errgroup.WithContext(ctx)
	g.Go(fault.ContainedErr(unit, func() error { return server.Serve(socket) }))
	g.Go(fault.ContainedErr(unit, func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	}))
	g.Go(fault.ContainedErr(unit, func() error {
		m.followAll(ctx)
		return nil
	}))
	return g.Wait()
}

// followAll follows each plug-in that registers, and returns when ctx has ended and none is followed any more.
func (m *Manager) followAll(ctx context.Context) {
	var streams sync.WaitGroup
	defer streams.Wait()
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-m.connected:
			streams.Go(fault.Contained(unit, func() { m.follow(ctx, p) }))
		}
	}
}

// removeSockets removes the sockets of the time before. A plug-in that lives sees that and registers again.
func (m *Manager) removeSockets() error {
	if err := os.MkdirAll(m.cfg.Dir, 0o750); err != nil {
		return fmt.Errorf("directory of device plug-ins: %w", err)
	}
	entries, err := os.ReadDir(m.cfg.Dir)
	if err != nil {
		return fmt.Errorf("directory of device plug-ins: %w", err)
	}
	for _, e := range entries {
		if e.Type() != os.ModeSocket {
			continue
		}
		if err := os.Remove(filepath.Join(m.cfg.Dir, e.Name())); err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("socket of a former device plug-in: %w", err)
		}
	}
	return nil
}
