package criconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/containerlogs"
)

// ContainerInput is what a container's configuration depends on.
type ContainerInput struct {
	Pod            *v1.Pod
	Container      *v1.Container
	Attempt        int
	ImageRef       string
	User           ImageUser
	Env            []*runtimeapi.KeyValue
	Mounts         []*runtimeapi.Mount
	Devices        []*runtimeapi.Device
	PodIPs         []string
	TargetID       string // ID of the container whose processes an ephemeral container shares, else ""
	MemoryCapacity int64
	Users          *runtimeapi.UserNamespace
	Allocation     Allocation
}

// Allocation is what a container has got of the machine besides what its spec says.
type Allocation struct {
	Env         []*runtimeapi.KeyValue // a variable of the spec takes the place of one with the same name
	Mounts      []*runtimeapi.Mount
	Devices     []*runtimeapi.Device
	CDIDevices  []*runtimeapi.CDIDevice
	Annotations map[string]string
	CPUs        string // on which the container runs, such as "0,2-3"; "" is all
	NoCPUQuota  bool   // its CPUs are its own, so that its limit needs no enforcing
}

// Container returns the configuration of a container. It makes the container's log directory and the files that are mounted
// into it besides volumes.
func (c *Config) Container(in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	ct := in.Container
	security, err := c.containerSecurity(in)
	if err != nil {
		return nil, err
	}
	if in.TargetID != "" && security.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		security.NamespaceOptions.Pid, security.NamespaceOptions.TargetId = runtimeapi.NamespaceMode_TARGET, in.TargetID
	}
	in.Mounts, in.Env = slices.Concat(in.Mounts, in.Allocation.Mounts), slices.Concat(in.Allocation.withoutEnv(in.Env), in.Env)
	mounts, err := c.fileMounts(in)
	if err != nil {
		return nil, err
	}
	mapOwners(mounts, in.Users)
	logDir := filepath.Join(containerlogs.PodDir(c.LogDir, in.Pod), ct.Name)
	if err := os.MkdirAll(logDir, DirMode); err != nil {
		return nil, fmt.Errorf("create container log directory for container %s failed: %w", ct.Name, err)
	}
	env := map[string]string{}
	for _, kv := range in.Env {
		env[kv.Key] = string(kv.Value)
	}
	cfg := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: ct.Name, Attempt: uint32(in.Attempt)},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: ct.Image},
		Command:     expandAll(ct.Command, env),
		Args:        expandAll(ct.Args, env),
		WorkingDir:  ct.WorkingDir,
		Envs:        in.Env,
		Mounts:      mounts,
		Devices:     slices.Concat(in.Devices, in.Allocation.Devices),
		CDIDevices:  in.Allocation.CDIDevices,
		Labels:      containerLabels(in.Pod, ct.Name),
		Annotations: containerAnnotations(in),
		LogPath:     containerlogs.FileName(ct.Name, in.Attempt),
		Stdin:       ct.Stdin, StdinOnce: ct.StdinOnce, Tty: ct.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       ContainerResources(in.Pod, ct, in.MemoryCapacity),
			SecurityContext: security,
		},
	}
	cfg.Linux.Resources.CpusetCpus = in.Allocation.CPUs
	if in.Allocation.NoCPUQuota {
		cfg.Linux.Resources.CpuQuota = -1
	}
	if l := ct.Lifecycle; l != nil && l.StopSignal != nil {
		cfg.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value[string(*l.StopSignal)])
	}
	return cfg, nil
}

// withoutEnv returns the allocated variables whose names are not among set.
func (a *Allocation) withoutEnv(set []*runtimeapi.KeyValue) []*runtimeapi.KeyValue {
	return slices.DeleteFunc(slices.Clone(a.Env), func(e *runtimeapi.KeyValue) bool {
		return slices.ContainsFunc(set, func(o *runtimeapi.KeyValue) bool { return o.Key == e.Key })
	})
}

// fileMounts adds the mounts of /etc/hosts and of the termination message, where no volume is mounted at their paths, and makes
// the files.
func (c *Config) fileMounts(in ContainerInput) ([]*runtimeapi.Mount, error) {
	mounts := in.Mounts
	taken := map[string]bool{}
	for _, m := range mounts {
		taken[filepath.Clean(m.ContainerPath)] = true
	}
	if !taken["/etc/hosts"] {
		path := filepath.Join(c.PodDir(in.Pod.UID), "etc-hosts")
		if err := c.writeHosts(path, in); err != nil {
			return nil, fmt.Errorf("write hosts file: %w", err)
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: "/etc/hosts"})
	}
	if p := in.Container.TerminationMessagePath; p != "" && !taken[filepath.Clean(p)] {
		dir := filepath.Join(c.PodDir(in.Pod.UID), "containers", in.Container.Name)
		path := filepath.Join(dir, rand.String(8))
		if err := os.MkdirAll(dir, DirMode); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, nil, terminationLogMode); err != nil {
			return nil, err
		}
		if err := os.Chmod(path, terminationLogMode); err != nil { // the umask may have removed bits
			return nil, err
		}
		mounts = append(mounts, &runtimeapi.Mount{HostPath: path, ContainerPath: p})
	}
	return mounts, nil
}

// PodDir is the agent's directory of one pod.
func (c *Config) PodDir(uid types.UID) string {
	return filepath.Join(c.RootDir, "pods", string(uid))
}
