package volume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// SetUp materialises every volume of pod that a container uses. It is idempotent, and called again with a newer pod it
// brings downward API volumes up to date. The error's text is what the user reads in a FailedMount event: one line
// for each volume that is not ready.
func (m *Manager) SetUp(ctx context.Context, pod *v1.Pod) (Mounts, error) {
	st := m.state(pod.UID)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.gone {
		return nil, fmt.Errorf("%w: %s/%s", errTearingDown, pod.Namespace, pod.Name)
	}
	stale := st.pod != nil && downwardChanged(st.pod, pod)
	if st.pod == nil {
		m.register(st, pod)
	}
	st.pod = pod
	used := usedVolumes(pod)
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		_, done := st.mounts[v.Name]
		if !used[v.Name] || (done && !(stale && showsPod(v))) {
			continue
		}
		vol, err := m.setUpVolume(ctx, st, v, m.objects.get)
		if err != nil {
			errs = append(errs, fmt.Errorf("MountVolume.SetUp failed for volume %q : %w", v.Name, err))
			continue
		}
		st.mounts[v.Name] = vol
	}
	if err := joinErrors(errs); err != nil {
		return nil, err
	}
	return maps.Clone(st.mounts), nil
}

// setUpVolume makes one volume ready, or brings it up to date. Called with st.mu held.
func (m *Manager) setUpVolume(ctx context.Context, st *podState, v *v1.Volume, get getFunc) (Volume, error) {
	pod := st.pod
	switch {
	case v.EmptyDir != nil:
		dir := m.volumeDir(pod, "empty-dir", v.Name)
		return Volume{HostPath: dir}, m.setUpEmptyDir(pod, v.EmptyDir, dir)
	case v.HostPath != nil:
		return Volume{HostPath: v.HostPath.Path}, checkHostPath(v.HostPath.Path, v.HostPath.Type)
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return m.setUpClaim(ctx, st, v)
	case v.CSI != nil:
		return m.setUpInline(ctx, st, v)
	case v.Image != nil:
		return Volume{Image: v.Image.Reference, ReadOnly: true}, nil
	case isDynamic(v):
		return m.setUpDynamic(ctx, st, v, get)
	}
	return Volume{}, errors.New("no volume plugin matched")
}

// setUpDynamic writes the content of a volume that comes from the API.
func (m *Manager) setUpDynamic(ctx context.Context, st *podState, v *v1.Volume, get getFunc) (Volume, error) {
	pod := st.pod
	c := &collector{m: m, pod: pod, get: get, tokens: st.tokens, owner: commonUser(pod), group: fsGroup(pod)}
	if err := c.collect(ctx, v); err != nil {
		return Volume{}, err
	}
	dir, err := m.dynamicDir(pod, v)
	if err != nil {
		return Volume{}, err
	}
	nested, err := nestedMountPoints(pod, v.Name)
	if err != nil {
		return Volume{}, err
	}
	for _, rel := range nested {
		if err := makeBeneath(dir, rel, 0o755); err != nil {
			return Volume{}, fmt.Errorf("unable to create nested volume mountpoints: %w", err)
		}
	}
	if err := writeAtomic(dir, c.out, c.group); err != nil {
		return Volume{}, err
	}
	m.noteTokens(st)
	if !c.refresh.IsZero() {
		m.refreshAt(pod.UID, c.refresh)
	}
	return Volume{HostPath: dir, ReadOnly: true}, nil
}

// dynamicDir makes the directory of such a volume: on disk for a ConfigMap, in memory for everything else.
func (m *Manager) dynamicDir(pod *v1.Pod, v *v1.Volume) (string, error) {
	if v.ConfigMap != nil {
		dir := m.volumeDir(pod, "configmap", v.Name)
		return dir, makeOwnedDir(dir, fsGroup(pod))
	}
	kind := "secret"
	switch {
	case v.Projected != nil:
		kind = "projected"
	case v.DownwardAPI != nil:
		kind = "downward-api"
	}
	dir := m.volumeDir(pod, kind, v.Name)
	return dir, mountTmpfs(dir, m.tmpfsSize(pod, nil), fsGroup(pod))
}

func (m *Manager) volumeDir(pod *v1.Pod, kind, name string) string {
	return filepath.Join(m.podDir(pod.UID), volumesDir, "kubernetes.io~"+kind, name)
}

// usedVolumes returns the names of the volumes that some container mounts.
func usedVolumes(pod *v1.Pod) map[string]bool {
	used := map[string]bool{}
	for _, c := range allContainers(pod) {
		for _, mount := range c.mounts {
			used[mount.Name] = true
		}
		for _, d := range c.devices {
			used[d.Name] = true
		}
	}
	for i := range pod.Spec.InitContainers {
		addFileKeyVolumes(used, pod.Spec.InitContainers[i].Env)
	}
	for i := range pod.Spec.Containers {
		addFileKeyVolumes(used, pod.Spec.Containers[i].Env)
	}
	return used
}

func addFileKeyVolumes(used map[string]bool, env []v1.EnvVar) {
	for _, e := range env {
		if e.ValueFrom != nil && e.ValueFrom.FileKeyRef != nil {
			used[e.ValueFrom.FileKeyRef.VolumeName] = true
		}
	}
}

// downwardChanged tells whether something that the downward API shows in files differs.
func downwardChanged(a, b *v1.Pod) bool {
	if !maps.Equal(a.Labels, b.Labels) || !maps.Equal(a.Annotations, b.Annotations) {
		return true
	}
	for i := range b.Spec.Containers {
		if i >= len(a.Spec.Containers) || !equality.Semantic.DeepEqual(a.Spec.Containers[i].Resources, b.Spec.Containers[i].Resources) {
			return true
		}
	}
	return false
}

// showsPod tells whether the volume shows fields of the pod.
func showsPod(v *v1.Volume) bool {
	if v.DownwardAPI != nil {
		return true
	}
	if v.Projected == nil {
		return false
	}
	for i := range v.Projected.Sources {
		if v.Projected.Sources[i].DownwardAPI != nil {
			return true
		}
	}
	return false
}
