package podresources

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podresourcesapi "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/deviceplugin"
)

func serve(t *testing.T) podresourcesapi.PodResourcesListerClient {
	always := v1.ContainerRestartPolicyAlways
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: v1.PodSpec{
		InitContainers: []v1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}}, Containers: []v1.Container{{Name: "main"}}}}
	gpu := deviceplugin.Listed{Resource: "example.com/gpu", ID: "a", Nodes: 2}
	dir := t.TempDir()
	s := New(Config{
		Dir: dir, Pods: func() []*v1.Pod { return []*v1.Pod{pod} },
		Devices: func(uid types.UID, container string) []deviceplugin.Listed {
			if uid == "u" && container == "main" {
				return []deviceplugin.Listed{gpu}
			}
			return nil
		},
		AllDevices: func() []deviceplugin.Listed {
			return []deviceplugin.Listed{gpu, {Resource: "example.com/gpu", ID: "b"}}
		},
		CPUs: func(_ types.UID, container string) cpuset.CPUSet {
			if container == "side" {
				return cpuset.New(1, 3)
			}
			return cpuset.New()
		},
		AllCPUs: func() cpuset.CPUSet { return cpuset.New(1, 2, 3) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return podresourcesapi.NewPodResourcesListerClient(conn)
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestPodsAreListedWithWhatTheyHave(t *testing.T) {
	client := serve(t)
	all, err := client.List(within(t), &podresourcesapi.ListPodResourcesRequest{})
	if err != nil || len(all.PodResources) != 1 {
		t.Fatal(all, err)
	}
	one, err := client.Get(within(t), &podresourcesapi.GetPodResourcesRequest{PodNamespace: "ns", PodName: "p"})
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*podresourcesapi.PodResources{"List": all.PodResources[0], "Get": one.PodResources} {
		if len(p.Containers) != 2 || p.Containers[0].Name != "side" || p.Containers[1].Name != "main" {
			t.Fatalf("%s: %v", name, p)
		}
		side, main := p.Containers[0], p.Containers[1]
		if fmt.Sprint(side.CpuIds) != "[1 3]" || len(side.Devices) != 0 || len(main.Devices) != 1 || main.Devices[0].DeviceIds[0] != "a" || main.Devices[0].Topology.Nodes[0].ID != 1 {
			t.Errorf("%s: %v", name, p)
		}
	}
	if _, err := client.Get(within(t), &podresourcesapi.GetPodResourcesRequest{PodNamespace: "ns", PodName: "other"}); status.Code(err) != codes.NotFound {
		t.Errorf("a pod that is not there: %v", err)
	}
	room, err := client.GetAllocatableResources(within(t), &podresourcesapi.AllocatableResourcesRequest{})
	if err != nil || len(room.Devices) != 2 || room.Devices[1].Topology != nil || fmt.Sprint(room.CpuIds) != "[1 2 3]" {
		t.Errorf("%v %v", room, err)
	}
}

func TestTooManyCallsAreRefused(t *testing.T) {
	s := New(Config{})
	next := func(context.Context, any) (any, error) { return nil, nil }
	refused := 0
	for range 10 * burst {
		if _, err := s.admit(t.Context(), nil, nil, next); status.Code(err) == codes.ResourceExhausted {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no call is refused")
	}
	s = New(Config{})
	if _, err := s.admit(t.Context(), nil, nil, func(context.Context, any) (any, error) { panic("x") }); status.Code(err) != codes.Internal {
		t.Errorf("a call that panics: %v", err)
	}
}
