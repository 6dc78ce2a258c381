package volume

import (
	"errors"
	"fmt"
	"path/filepath"
	"sort"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ContainerMounts returns the CRI mounts for the container's volumeMounts. env is the container's environment, for
// subPathExpr. cleanup takes back the subPath binds of this container, for one that was not created after all or that is
// gone; it does nothing once a later call has prepared the next container of that name. TearDown takes back all.
func (m *Manager) ContainerMounts(pod *v1.Pod, c *v1.Container, mounts Mounts, env []*runtimeapi.KeyValue) (ms []*runtimeapi.Mount, cleanup func(), err error) {
	bound := map[string]uint64{}
	cleanup = func() { m.unbind(bound) }
	for i := range c.VolumeMounts {
		mount := &c.VolumeMounts[i]
		vol, ok := mounts[mount.Name]
		if !ok {
			cleanup()
			return nil, func() {}, fmt.Errorf("cannot find volume %q to mount into container %q", mount.Name, c.Name)
		}
		target := m.subPathTarget(pod, mount.Name, c.Name, i)
		cm, err := m.containerMount(mount, vol, env, target)
		if err != nil {
			cleanup()
			return nil, func() {}, fmt.Errorf("%w", m.userError(err, mount.Name, c.Name))
		}
		if cm.owner != 0 {
			bound[target] = cm.owner
		}
		ms = append(ms, cm.Mount)
	}
	return ms, cleanup, nil
}

type containerMount struct {
	*runtimeapi.Mount
	owner uint64 // of the subPath bind; 0 when there is none
}

// errSubPath wraps what went wrong on the host with a subPath; users are not told, it could tell about the host.
var errSubPath = errors.New("subPath")

func (m *Manager) userError(err error, volume, container string) error {
	if !errors.Is(err, errSubPath) {
		return err
	}
	m.log.Warn("cannot prepare a subPath", "volume", volume, "container", container, "err", err)
	return fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q", volume, container)
}

func (m *Manager) containerMount(mount *v1.VolumeMount, vol Volume, env []*runtimeapi.KeyValue, target string) (containerMount, error) {
	sub, err := subPathOf(mount, env)
	if err != nil {
		return containerMount{}, err
	}
	recursive, err := m.recursiveReadOnly(mount)
	if err != nil {
		return containerMount{}, fmt.Errorf("failed to resolve recursive read-only mode: %w", err)
	}
	propagation, err := propagationOf(mount.MountPropagation)
	if err != nil {
		return containerMount{}, err
	}
	var image *runtimeapi.ImageSpec
	imageSub := ""
	if vol.Image != "" {
		image, imageSub, sub = &runtimeapi.ImageSpec{Image: vol.Image}, sub, ""
	}
	host, owner := vol.HostPath, uint64(0)
	if sub != "" {
		if owner, err = m.bind(vol.HostPath, sub, target); err != nil {
			return containerMount{}, fmt.Errorf("%w %s: %w", errSubPath, sub, err)
		}
		host = target
	}
	path := mount.MountPath
	if !filepath.IsAbs(path) {
		path = "/" + path
	}
	return containerMount{Mount: &runtimeapi.Mount{
		ContainerPath:     path,
		HostPath:          host,
		Readonly:          mount.ReadOnly || vol.ReadOnly,
		RecursiveReadOnly: recursive,
		Propagation:       propagation,
		Image:             image,
		ImageSubPath:      imageSub,
	}, owner: owner}, nil
}

// bind binds a subPath and returns a number that stands for this bind until the next one on target.
func (m *Manager) bind(base, sub, target string) (uint64, error) {
	m.subPathMu.Lock()
	defer m.subPathMu.Unlock()
	if err := bindSubPath(base, sub, target); err != nil {
		return 0, err
	}
	m.lastBind++
	m.binds[target] = m.lastBind
	return m.lastBind, nil
}

// unbind takes back those binds that are still the newest on their target.
func (m *Manager) unbind(targets map[string]uint64) {
	m.subPathMu.Lock()
	defer m.subPathMu.Unlock()
	for t, owner := range targets {
		if m.binds[t] != owner {
			continue
		}
		delete(m.binds, t)
		if err := unmount(t); err != nil {
			m.log.Warn("cannot unmount a subPath", "path", t, "err", err)
		}
	}
}

// forgetBinds forgets the binds below dir.
func (m *Manager) forgetBinds(dir string) {
	m.subPathMu.Lock()
	defer m.subPathMu.Unlock()
	for t := range m.binds {
		if strings.HasPrefix(t, dir+"/") {
			delete(m.binds, t)
		}
	}
}

func (m *Manager) recursiveReadOnly(mount *v1.VolumeMount) (bool, error) {
	mode := mount.RecursiveReadOnly
	if mode == nil || *mode == v1.RecursiveReadOnlyDisabled {
		return false, nil
	}
	if !mount.ReadOnly {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not read-only", mount.Name)
	}
	if p := mount.MountPropagation; p != nil && *p != v1.MountPropagationNone {
		return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not compatible with propagation %q", mount.Name, *p)
	}
	switch *mode {
	case v1.RecursiveReadOnlyIfPossible:
		return !m.cfg.NoRecursiveReadOnly, nil
	case v1.RecursiveReadOnlyEnabled:
		if m.cfg.NoRecursiveReadOnly {
			return false, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", mount.Name)
		}
		return true, nil
	}
	return false, fmt.Errorf("unknown recursive read-only mode %q", *mode)
}

func propagationOf(mode *v1.MountPropagationMode) (runtimeapi.MountPropagation, error) {
	if mode == nil {
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	switch *mode {
	case v1.MountPropagationHostToContainer:
		return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, nil
	case v1.MountPropagationBidirectional:
		return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL, nil
	case v1.MountPropagationNone:
		return runtimeapi.MountPropagation_PROPAGATION_PRIVATE, nil
	}
	return 0, fmt.Errorf("invalid MountPropagation mode: %q", *mode)
}

// ContainerDevices returns the CRI devices for the container's volumeDevices.
func (m *Manager) ContainerDevices(c *v1.Container, mounts Mounts) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		vol, ok := mounts[d.Name]
		if !ok || !vol.Block {
			return nil, fmt.Errorf("cannot find block volume %q to map into container %q", d.Name, c.Name)
		}
		permissions := "mrw"
		if vol.ReadOnly {
			permissions = "r"
		}
		out = append(out, &runtimeapi.Device{ContainerPath: d.DevicePath, HostPath: vol.HostPath, Permissions: permissions})
	}
	return out, nil
}

// nestedMountPoints returns, relative to the volume, the directories on which other volumes are mounted inside it. A
// read-only volume must hold them before a container starts: its runtime could not make them.
func nestedMountPoints(pod *v1.Pod, name string) ([]string, error) {
	var out []string
	for _, c := range allContainers(pod) {
		var all []string
		for _, mount := range c.mounts {
			all = append(all, filepath.Clean(mount.MountPath))
		}
		sort.Strings(all)
		for _, mount := range c.mounts {
			if mount.Name != name {
				continue
			}
			at := filepath.Clean(mount.MountPath)
			if at == ".." || strings.HasPrefix(at, "../") {
				return nil, fmt.Errorf("invalid container mount point %v", at)
			}
			out = append(out, outermostBelow(strings.TrimSuffix(at, "/")+"/", all)...)
		}
	}
	return out, nil
}

// outermostBelow returns those of the sorted paths that begin with prefix, without it and without nested ones.
func outermostBelow(prefix string, paths []string) []string {
	var out []string
next:
	for _, p := range paths {
		rel, ok := strings.CutPrefix(p, prefix)
		if !ok || rel == "" {
			continue
		}
		for _, have := range out {
			if rel == have || strings.HasPrefix(rel, have+"/") {
				continue next
			}
		}
		out = append(out, rel)
	}
	return out
}
