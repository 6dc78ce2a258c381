package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const claimDriver = "lamp.example.com"

// lampDriver is a driver of Dynamic Resource Allocation: its devices set a variable, by CDI.
type lampDriver struct{ taken chan string }

func (d *lampDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var r kubeletplugin.PrepareResult
		for _, a := range c.Status.Allocation.Devices.Results {
			r.Devices = append(r.Devices, kubeletplugin.Device{Requests: []string{a.Request}, PoolName: a.Pool, DeviceName: a.Device,
				CDIDeviceIDs: []string{"example.com/lamp=" + a.Device}})
		}
		out[c.UID] = r
	}
	return out, nil
}

func (d *lampDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := map[types.UID]error{}
	for _, c := range claims {
		out[c.UID] = nil
		d.taken <- c.Name
	}
	return out, nil
}

func (d *lampDriver) HandleError(context.Context, error, string) {}

// serveLamps runs the driver with two devices until the test ends.
func serveLamps(t *testing.T, c *cluster, node string) *lampDriver {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join("/var/run/cdi", "balsa-e2e-lamp.json")
	if err := os.MkdirAll(filepath.Dir(spec), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(spec) })
	const cdi = `{"cdiVersion": "0.6.0", "kind": "example.com/lamp", "devices": [
		{"name": "red", "containerEdits": {"env": ["LAMP=red"]}}, {"name": "blue", "containerEdits": {"env": ["LAMP=blue"]}}]}`
	if err := os.WriteFile(spec, []byte(cdi), 0o644); err != nil {
		t.Fatal(err)
	}
	agent := filepath.Join(c.DataDir, "agent")
	data := filepath.Join(agent, "plugins", claimDriver)
	if err := os.MkdirAll(data, 0o750); err != nil {
		t.Fatal(err)
	}
	d := &lampDriver{taken: make(chan string, 100)}
	ctx, cancel := context.WithCancel(context.Background())
	helper, err := kubeletplugin.Start(ctx, d, kubeletplugin.DriverName(claimDriver), kubeletplugin.NodeName(node), kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(data), kubeletplugin.RegistrarDirectoryPath(filepath.Join(agent, "plugins_registry")))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); helper.Stop() })
	color := func(name string) resourceapi.Device {
		return resourceapi.Device{Name: name, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"color": {StringValue: &name}}}
	}
	err = helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: []resourceapi.Device{color("red"), color("blue")}}}}}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestAPodGetsTheDevicesOfItsClaim: a template becomes a claim, the claim a device, and the device a variable of the container, also
// after the node was killed; the device is taken back with the pod, and goes to the next.
func TestAPodGetsTheDevicesOfItsClaim(t *testing.T) {
	c := start(t)
	node := c.kubectl("get", "nodes", "-o", "jsonpath={.items[0].metadata.name}")
	driver := serveLamps(t, c, node)
	pod := func(name string) string {
		return fmt.Sprintf(`
---
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  resourceClaims: [{name: lamp, resourceClaimTemplateName: blue}]
  containers: [{name: main, image: "balsahq/hello:1", command: [sleep, "10000"], resources: {claims: [{name: lamp}]}}]
`, name)
	}
	c.apply(`
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: lamp}
spec: {selectors: [{cel: {expression: 'device.driver == "lamp.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: blue}
spec:
  spec:
    devices:
      requests:
      - name: one
        exactly:
          deviceClassName: lamp
          selectors: [{cel: {expression: 'device.attributes["lamp.example.com"].color == "blue"'}}]
` + pod("first"))
	c.kubectl("wait", "--for=condition=Ready", "pod/first", "--timeout=60s")
	hasLamp := func(name string) {
		t.Helper()
		if env := c.kubectl("exec", name, "--", "env"); !strings.Contains(env, "LAMP=blue") {
			t.Errorf("pod %s has no device of its claim:\n%s", name, env)
		}
	}
	hasLamp("first")
	c.apply(pod("second"))
	c.eventually("the second pod waits for the only blue lamp", c.wants("cannot allocate all claims", "get", "pod", "second", "-o", "jsonpath={.status.conditions}"))
	if err := c.Kill9(); err != nil {
		t.Fatal(err)
	}
	c.up()
	c.kubectl("delete", "pod", "first", "--wait=true", "--timeout=60s")
	c.eventually("the driver takes the device back", func() error {
		select {
		case name := <-driver.taken:
			if strings.HasPrefix(name, "first-lamp-") {
				return nil
			}
			return fmt.Errorf("it took back %s", name)
		default:
			return errors.New("it was not asked")
		}
	})
	c.kubectl("wait", "--for=condition=Ready", "pod/second", "--timeout=60s")
	hasLamp("second")
	c.eventually("the claim goes with its pod", func() error {
		if left := c.kubectl("get", "resourceclaims", "-o", "name"); strings.Count(left, "\n") > 1 || strings.Contains(left, "first") {
			return fmt.Errorf("there are %s", left)
		}
		return nil
	})
}
