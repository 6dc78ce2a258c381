package node

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"sort"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/balsahq/balsa/node/criconfig"
	"github.com/balsahq/balsa/node/diskspace"
)

// health is the state of the machine from which the Node's conditions follow.
type health struct {
	NotReady                 string // why pods cannot run here; "" when they can run
	Pressure                 []v1.NodeConditionType
	Images                   []*runtimeapi.Image
	Handlers                 []*runtimeapi.RuntimeHandler
	StrictGroups             bool // the runtime knows supplementalGroupsPolicy Strict
	RuntimeName, RuntimeVers string
	VolumesInUse             []v1.UniqueVolumeName
}

// initialNode returns the Node as it is registered.
func (a *Agent) initialNode() *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: a.cfg.NodeName, Labels: a.cfg.nodeLabels()}}
	n.Spec.Taints, n.Spec.ProviderID = a.cfg.Taints, a.cfg.ProviderID
	n.Status.Capacity = a.cfg.capacity()
	n.Status.Allocatable = a.cfg.allocatable(n.Status.Capacity)
	return n
}

func (c *Config) nodeLabels() map[string]string {
	l := map[string]string{
		v1.LabelHostname: c.Hostname, v1.LabelOSStable: runtime.GOOS, v1.LabelArchStable: runtime.GOARCH,
		"beta.kubernetes.io/os": runtime.GOOS, "beta.kubernetes.io/arch": runtime.GOARCH,
	}
	for _, r := range c.Roles {
		l["node-role.kubernetes.io/"+r] = ""
	}
	maps.Copy(l, c.Labels)
	return l
}

// memoryCapacity returns the machine's memory in bytes.
func memoryCapacity() int64 {
	for _, line := range strings.Split(readLine("/proc/meminfo"), "\n") {
		if kib, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(kib, "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

// capacity returns the resources of the machine.
func (c *Config) capacity() v1.ResourceList {
	l := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(memoryCapacity(), resource.BinarySI),
		v1.ResourcePods:   *resource.NewQuantity(int64(c.MaxPods), resource.DecimalSI),
	}
	if total, _, err := diskspace.Of(c.RootDir); err == nil {
		l[v1.ResourceEphemeralStorage] = *resource.NewQuantity(total, resource.BinarySI)
	}
	for _, size := range criconfig.HugepageSizes() {
		b, _ := os.ReadFile(fmt.Sprintf("%s/hugepages-%dkB/nr_hugepages", criconfig.HugepagesDir, size>>10))
		n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		name := v1.ResourceName(v1.ResourceHugePagesPrefix + resource.NewQuantity(size, resource.BinarySI).String())
		l[name] = *resource.NewQuantity(n*size, resource.BinarySI)
	}
	return l
}

// podsRoom returns what pods may use together: the capacity without what is reserved.
func (c *Config) podsRoom(capacity v1.ResourceList) v1.ResourceList {
	l := capacity.DeepCopy()
	reserved := v1.ResourceList{}
	maps.Copy(reserved, c.Reserved)
	if n := c.Allocation.ReservedCPUs.Size(); n > 0 { // these CPUs count, and not an amount
		reserved[v1.ResourceCPU] = *resource.NewQuantity(int64(n), resource.DecimalSI)
	}
	subtract(l, reserved)
	for name, q := range capacity {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) {
			subtract(l, v1.ResourceList{v1.ResourceMemory: q}) // memory of huge pages cannot be used as other memory
		}
	}
	return l
}

// allocatable returns what pods may request: a pod that used more would be evicted.
func (c *Config) allocatable(capacity v1.ResourceList) v1.ResourceList {
	l := c.podsRoom(capacity)
	subtract(l, c.Eviction.Reserved(capacity))
	return l
}

// subtract takes off l what less has of the same resources; nothing goes below zero.
func subtract(l, less v1.ResourceList) {
	for name, q := range less {
		if have, ok := l[name]; ok {
			have.Sub(q)
			if have.Sign() < 0 {
				have = resource.Quantity{Format: have.Format}
			}
			l[name] = have
		}
	}
}

// nodeStatus returns the Node's status from the machine and from h. Conditions and extended resources that other writers set
// stay. Heartbeat times are now.
func (a *Agent) nodeStatus(old *v1.NodeStatus, h health, now metav1.Time) v1.NodeStatus {
	s := *old.DeepCopy()
	if s.Capacity == nil {
		s.Capacity, s.Allocatable = v1.ResourceList{}, v1.ResourceList{}
	}
	mine := a.cfg.capacity()
	maps.Copy(s.Capacity, mine)
	maps.Copy(s.Allocatable, a.cfg.allocatable(mine))
	devices, healthy := a.devices.Capacity(now.Time)
	maps.Copy(s.Capacity, devices)
	maps.Copy(s.Allocatable, healthy)
	for name, q := range s.Capacity {
		if _, known := s.Allocatable[name]; !known {
			s.Allocatable[name] = q // an extended resource that another writer has set
		}
	}
	s.Addresses = nil
	for _, ip := range a.hostIPs {
		s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, v1.NodeAddress{Type: v1.NodeHostName, Address: a.cfg.Hostname})
	s.DaemonEndpoints.KubeletEndpoint.Port = a.cfg.KubeletPort
	s.NodeInfo = a.nodeInfo(h)
	s.VolumesInUse = h.VolumesInUse
	s.Images = nodeImages(h.Images)
	s.RuntimeHandlers = nil
	for _, r := range h.Handlers {
		h := v1.NodeRuntimeHandler{Name: r.Name}
		if f := r.Features; f != nil { // nil: the runtime does not say
			h.Features = &v1.NodeRuntimeHandlerFeatures{RecursiveReadOnlyMounts: &f.RecursiveReadOnlyMounts, UserNamespaces: &f.UserNamespaces}
		}
		s.RuntimeHandlers = append(s.RuntimeHandlers, h)
	}
	if h.RuntimeName != "" {
		s.Features = &v1.NodeFeatures{SupplementalGroupsPolicy: &h.StrictGroups}
	}
	s.Conditions = nodeConditions(s.Conditions, h, now)
	return s
}

func nodeConditions(old []v1.NodeCondition, h health, now metav1.Time) []v1.NodeCondition {
	pressure := func(t v1.NodeConditionType, yes, no string, yesText, noText string) v1.NodeCondition {
		if slices.Contains(h.Pressure, t) {
			return v1.NodeCondition{Type: t, Status: v1.ConditionTrue, Reason: yes, Message: yesText}
		}
		return v1.NodeCondition{Type: t, Status: v1.ConditionFalse, Reason: no, Message: noText}
	}
	ready := v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"}
	if h.NotReady != "" {
		ready.Status, ready.Reason, ready.Message = v1.ConditionFalse, "KubeletNotReady", h.NotReady
	}
	mine := []v1.NodeCondition{
		pressure(v1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory",
			"kubelet has insufficient memory available", "kubelet has sufficient memory available"),
		pressure(v1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure",
			"kubelet has disk pressure", "kubelet has no disk pressure"),
		pressure(v1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID",
			"kubelet has insufficient PID available", "kubelet has sufficient PID available"),
		ready,
	}
	var out []v1.NodeCondition
	for _, c := range old {
		if !ownNodeCondition(c.Type) {
			out = append(out, c)
		}
	}
	for _, c := range mine {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
		out = append(out, c)
	}
	return out
}

func ownNodeCondition(t v1.NodeConditionType) bool {
	return t == v1.NodeReady || t == v1.NodeMemoryPressure || t == v1.NodeDiskPressure || t == v1.NodePIDPressure
}

func (a *Agent) nodeInfo(h health) v1.NodeSystemInfo {
	i := v1.NodeSystemInfo{
		MachineID: readLine("/etc/machine-id"), SystemUUID: readLine("/sys/class/dmi/id/product_uuid"),
		BootID: readLine("/proc/sys/kernel/random/boot_id"), OSImage: osImage(),
		KubeletVersion: a.cfg.Version, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH,
		KernelVersion: readLine("/proc/sys/kernel/osrelease"),
	}
	if i.SystemUUID == "" {
		i.SystemUUID = i.MachineID
	}
	if h.RuntimeName != "" {
		i.ContainerRuntimeVersion = h.RuntimeName + "://" + strings.TrimPrefix(h.RuntimeVers, "v")
	}
	return i
}

func readLine(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

func osImage() string {
	for _, line := range strings.Split(readLine("/etc/os-release"), "\n") {
		if v, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return runtime.GOOS
}

const maxNodeImages = 50

// nodeImages returns the largest images, at most maxNodeImages: the scheduler prefers nodes that have a pod's image.
func nodeImages(in []*runtimeapi.Image) []v1.ContainerImage {
	in = append([]*runtimeapi.Image{}, in...)
	sort.Slice(in, func(i, j int) bool {
		if in[i].Size != in[j].Size {
			return in[i].Size > in[j].Size
		}
		return in[i].Id < in[j].Id
	})
	var out []v1.ContainerImage
	for _, im := range in {
		names := append(append([]string{}, im.RepoDigests...), im.RepoTags...)
		if len(names) == 0 {
			continue
		}
		if len(names) > 5 {
			names = names[:5]
		}
		if out = append(out, v1.ContainerImage{Names: names, SizeBytes: int64(im.Size)}); len(out) == maxNodeImages {
			break
		}
	}
	return out
}
