package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	corehelper "k8s.io/kubernetes/pkg/apis/core/v1/helper"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/node/pluginwatcher"
)

// registrar is the service on kubelet.sock.
type registrar struct {
	pluginapi.UnimplementedRegistrationServer
	m *Manager
}

// Register connects to the plug-in that calls it. It returns when the plug-in has answered on its own socket.
func (r registrar) Register(ctx context.Context, req *pluginapi.RegisterRequest) (*pluginapi.Empty, error) {
	if err := checkRequest(req); err != nil {
		r.m.log.Warn("device plug-in refused", "resource", req.ResourceName, "err", err)
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := r.m.Connect(ctx, req.ResourceName, filepath.Join(r.m.cfg.Dir, req.Endpoint)); err != nil {
		r.m.log.Warn("device plug-in not registered; it has to register again", "resource", req.ResourceName, "err", err)
		return nil, err
	}
	return &pluginapi.Empty{}, nil
}

// Register takes in a plug-in that pluginwatcher has found. Its name is the resource.
func (m *Manager) Register(ctx context.Context, info *registerapi.PluginInfo, endpoint string) error {
	if !slices.ContainsFunc(info.SupportedVersions, func(v string) bool { return slices.Contains(pluginapi.SupportedVersions[:], v) }) {
		return fmt.Errorf("versions %q of the API are not supported; supported: %v", info.SupportedVersions, pluginapi.SupportedVersions)
	}
	if !corehelper.IsExtendedResourceName(v1.ResourceName(info.Name)) {
		return fmt.Errorf("%q is not the name of an extended resource", info.Name)
	}
	return m.Connect(ctx, info.Name, endpoint)
}

// Gone ends the connection to a plug-in whose registration has gone.
func (m *Manager) Gone(_ context.Context, info *registerapi.PluginInfo, endpoint string, by pluginwatcher.Replacement) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.resources[info.Name]; by == pluginwatcher.None && r != nil && r.plugin != nil && r.plugin.socket == endpoint {
		r.plugin.conn.Close() // its stream ends then
	}
}

// checkRequest accepts an extended resource and a socket of the plug-ins' own directory.
func checkRequest(req *pluginapi.RegisterRequest) error {
	if !slices.Contains(pluginapi.SupportedVersions[:], req.Version) {
		return fmt.Errorf("version %q of the API is not supported; supported: %v", req.Version, pluginapi.SupportedVersions)
	}
	if !corehelper.IsExtendedResourceName(v1.ResourceName(req.ResourceName)) {
		return fmt.Errorf("%q is not the name of an extended resource", req.ResourceName)
	}
	e := req.Endpoint
	if e == "" || e != filepath.Base(e) || strings.HasPrefix(e, ".") || e == filepath.Base(pluginapi.KubeletSocket) {
		return fmt.Errorf("endpoint %q: give the name of a socket beside %s", e, filepath.Base(pluginapi.KubeletSocket))
	}
	return nil
}

// Connect asks the plug-in behind a socket for its options, and has its devices followed from then on. It takes the place of
// the plug-in that served the resource before.
func (m *Manager) Connect(ctx context.Context, name, socket string) error {
	select {
	case m.slots <- struct{}{}:
		defer func() { <-m.slots }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p, err := dialPlugin(ctx, name, socket)
	if err != nil {
		return err
	}
	if err := m.install(p); err != nil {
		p.conn.Close()
		return err
	}
	select {
	case m.connected <- p:
		return nil
	case <-ctx.Done():
		p.conn.Close()
		m.disconnected(p)
		return ctx.Err()
	}
}

// install makes p the plug-in of its resource.
func (m *Manager) install(p *plugin) error {
	m.mu.Lock()
	r, err := m.resourceFor(p.resource)
	if err != nil {
		m.mu.Unlock()
		return err
	}
	old := r.plugin
	r.plugin, r.preStart = p, p.options.GetPreStartRequired()
	m.mu.Unlock()
	if old != nil {
		old.conn.Close()
	}
	return m.save()
}

var errTooManyResources = errors.New("device plug-ins have registered too many resources")

// resourceFor returns the resource of a name, and makes it. One that has expired gives way when there are too many; the lock
// is held.
func (m *Manager) resourceFor(name string) (*resource, error) {
	now := time.Now()
	if r := m.resources[name]; r != nil {
		return r, nil
	}
	if len(m.resources) >= maxResources {
		for n, r := range m.resources {
			if r.expired(now) && len(m.inUse(n)) == 0 {
				delete(m.resources, n)
				break
			}
		}
	}
	if len(m.resources) >= maxResources {
		return nil, errTooManyResources
	}
	r := newResource(now)
	m.resources[name] = r
	return r, nil
}

// contained ends a call that panics, and no more.
func contained(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (out any, err error) {
	caught := fault.Contain(unit, func() error {
		out, err = next(ctx, req)
		return nil
	})
	if caught != nil {
		return nil, status.Error(codes.Internal, caught.Error())
	}
	return out, err
}
