package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"
)

// echoPlugin is a device plug-in whose devices are /dev/zero.
type echoPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	dir   string
	lists chan []*pluginapi.Device
}

func (p *echoPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (p *echoPlugin) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case <-to.Context().Done():
			return nil
		case list := <-p.lists:
			if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (p *echoPlugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:    map[string]string{"ECHO": strings.Join(r.ContainerRequests[0].DevicesIds, "+")},
		Devices: []*pluginapi.DeviceSpec{{HostPath: "/dev/zero", ContainerPath: "/dev/echo", Permissions: "r"}},
	}}}, nil
}

// serve serves on the plug-in's socket and registers, as a plug-in does when it sees that the node has started anew.
func (p *echoPlugin) serve(t *testing.T, health ...string) {
	t.Helper()
	path := filepath.Join(p.dir, "echo.sock")
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	p.list(health...)
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	request := &pluginapi.RegisterRequest{Version: pluginapi.Version, Endpoint: "echo.sock", ResourceName: "example.com/echo"}
	if _, err := pluginapi.NewRegistrationClient(conn).Register(ctx, request, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}

func (p *echoPlugin) list(health ...string) {
	var list []*pluginapi.Device
	for i, h := range health {
		list = append(list, &pluginapi.Device{ID: fmt.Sprintf("echo%d", i), Health: h})
	}
	p.lists <- list
}

// podResources returns what the PodResources API says of the container with devices.
func podResources(t *testing.T, c *cluster) string {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(c.DataDir, "agent", "pod-resources", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	all, err := podresourcesapi.NewPodResourcesListerClient(conn).List(t.Context(), &podresourcesapi.ListPodResourcesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, pod := range all.PodResources {
		for _, ct := range pod.Containers {
			names, cpus := []string{}, cpuset.New()
			for _, d := range ct.Devices {
				names = append(names, d.ResourceName)
			}
			for _, id := range ct.CpuIds {
				cpus = cpus.Union(cpuset.New(int(id)))
			}
			if len(names) > 0 {
				said = append(said, fmt.Sprintf("%s/%s %v %s", pod.Name, ct.Name, names, cpus))
			}
		}
	}
	return strings.Join(said, "; ")
}

// TestDevicesAndCPUsOfTheirOwn: a pod gets a device of a plug-in and a CPU for itself, and keeps both over a restart of the
// node.
func TestDevicesAndCPUsOfTheirOwn(t *testing.T) {
	c := start(t, "--cpu-manager-policy=static", "--reserved-cpus=0", "--topology-manager-policy=single-numa-node")
	p := &echoPlugin{dir: filepath.Join(c.DataDir, "agent", "device-plugins"), lists: make(chan []*pluginapi.Device, 10)}
	p.serve(t, pluginapi.Healthy, pluginapi.Healthy)
	c.eventually("the Node has the devices", c.wants("2", "get", "nodes", "-o", `jsonpath={.items[0].status.allocatable.example\.com/echo}`))
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: shares}
spec: {containers: [{name: main, image: "balsahq/hello:1", command: [sleep, "10000"]}], terminationGracePeriodSeconds: 0}
`)
	c.kubectl("wait", "--for=condition=Ready", "pod/shares", "--timeout=60s")
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: "balsahq/hello:1", command: [sleep, "10000"], resources: {limits: {cpu: 1, memory: 32Mi, example.com/echo: 1}}}
`)
	c.kubectl("wait", "--for=condition=Ready", "pod/own", "--timeout=60s")
	exec := func(pod string, args ...string) string {
		return c.kubectl(append([]string{"exec", pod, "--"}, args...)...)
	}
	cpusOf := func(pod string) cpuset.CPUSet {
		_, list, _ := strings.Cut(exec(pod, "cat", "/proc/self/status"), "Cpus_allowed_list:")
		set, err := cpuset.Parse(strings.TrimSpace(strings.SplitN(list, "\n", 2)[0]))
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	own := cpusOf("own")
	if own.Size() != 1 || own.Contains(0) {
		t.Fatalf("the pod runs on the CPUs %s, want one that is not reserved", own)
	}
	c.eventually("the other pod leaves that CPU", func() error {
		if shared := cpusOf("shares"); !shared.Intersection(own).IsEmpty() || !shared.Contains(0) {
			return fmt.Errorf("it runs on %s", shared)
		}
		return nil
	})
	if env := exec("own", "env"); !strings.Contains(env, "ECHO=echo0") {
		t.Errorf("no variable of the plug-in:\n%s", env)
	}
	exec("own", "sh", "-c", "test -c /dev/echo && : < /dev/echo")
	quota := exec("own", "sh", "-c", "cat /sys/fs/cgroup/cpu/cpu.cfs_quota_us /sys/fs/cgroup/cpu.max 2>/dev/null; true")
	if !strings.HasPrefix(quota, "-1") && !strings.HasPrefix(quota, "max") {
		t.Errorf("CPU quota %q on a CPU of its own", quota)
	}

	if got := podResources(t, c); got != "own/main [example.com/echo] "+own.String() {
		t.Errorf("the PodResources API says %q", got)
	}

	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	c.up()
	p.serve(t, pluginapi.Healthy, pluginapi.Unhealthy)
	c.eventually("the devices are there again", c.wants("1", "get", "nodes", "-o", `jsonpath={.items[0].status.allocatable.example\.com/echo}`))
	if got := cpusOf("own"); !got.Equals(own) {
		t.Errorf("after the restart the pod runs on the CPUs %s, before on %s", got, own)
	}
	node := c.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	c.apply(`
apiVersion: v1
kind: Pod
metadata: {name: late}
spec:
  nodeName: ` + node + `
  containers: [{name: main, image: "balsahq/hello:1", command: [sleep, "10000"], resources: {limits: {example.com/echo: 1}}}]
`)
	c.eventually("a pod does not get the device that another has, or a sick one", c.wants("UnexpectedAdmissionError", "get", "pod", "late", "-o", "jsonpath={.status.reason}"))
	p.list(pluginapi.Unhealthy, pluginapi.Unhealthy)
	c.eventually("the pod's status says that its device is sick", c.wants("Unhealthy", "get", "pod", "own", "-o", "jsonpath={.status.containerStatuses[0].allocatedResourcesStatus}"))
	c.kubectl("delete", "pod", "own", "--wait=true", "--timeout=60s")
	c.eventually("the CPU is shared again", func() error {
		if shared := cpusOf("shares"); !own.IsSubsetOf(shared) {
			return fmt.Errorf("the other pod runs on %s", shared)
		}
		return nil
	})
}
