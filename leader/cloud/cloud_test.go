package cloud

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

func start(t *testing.T, build func(workqueue.Env) (workqueue.Runner, error), objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(objects...)
	workqueuetest.Start(t, client, build)
	return client
}

func node(name string, ready v1.ConditionStatus, taints ...string) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: []string{"10.244." + name + ".0/24"}},
		Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: ready}}}}
	for _, key := range taints {
		n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoSchedule})
	}
	return n
}

// machines is a provider with the machines it was told of.
type machines struct {
	mu  sync.Mutex
	all map[string]Instance
}

func (m *machines) Instance(_ context.Context, n *v1.Node) (Instance, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if i, ok := m.all[n.Name]; ok {
		return i, nil
	}
	return Instance{}, ErrNoInstance
}

func TestANodeIsInitializedOnceItsMachineIsKnown(t *testing.T) {
	m := &machines{all: map[string]Instance{"1": {
		ProviderID: "p://1", Zone: "z", Region: "r", Type: "large",
		Addresses: []v1.NodeAddress{{Type: v1.NodeExternalIP, Address: "198.51.100.1"}},
	}}}
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewNodes(e, 1, m) },
		node("1", v1.ConditionTrue, "mine", TaintUninitialized), node("2", v1.ConditionTrue, TaintUninitialized))
	get := func(ctx context.Context, name string) *v1.Node {
		n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	workqueuetest.Eventually(t, "initialized", func(ctx context.Context) (bool, error) { return !uninitialized(get(ctx, "1")), nil })
	n := get(t.Context(), "1")
	if n.Spec.ProviderID != "p://1" || n.Labels[v1.LabelTopologyZone] != "z" || n.Labels[v1.LabelTopologyRegion] != "r" ||
		n.Labels[v1.LabelInstanceTypeStable] != "large" || len(n.Status.Addresses) != 1 || !hasTaint(n, "mine") {
		t.Fatalf("%+v", n)
	}
	if !uninitialized(get(t.Context(), "2")) {
		t.Fatal("a node without a machine was let in")
	}
	m.mu.Lock()
	m.all["2"] = Instance{ProviderID: "p://2"}
	m.mu.Unlock()
	workqueuetest.Eventually(t, "the other, too", func(ctx context.Context) (bool, error) { return !uninitialized(get(ctx, "2")), nil })
}

func TestBareMetalLetsEveryNodeIn(t *testing.T) {
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewNodes(e, 1, BareMetal(nil).Instances) }, node("1", v1.ConditionTrue, TaintUninitialized))
	workqueuetest.Eventually(t, "initialized", func(ctx context.Context) (bool, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, "1", metav1.GetOptions{})
		return err == nil && len(n.Spec.Taints) == 0 && n.Spec.ProviderID == "balsa://1", err
	})
}

func TestSilentNodesWithoutAMachineGoAndThoseSwitchedOffAreTainted(t *testing.T) {
	m := &machines{all: map[string]Instance{"2": {Off: true}, "3": {}}}
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewNodes(e, 1, m) },
		node("1", v1.ConditionUnknown), node("2", v1.ConditionUnknown), node("3", v1.ConditionUnknown, TaintOff), node("4", v1.ConditionTrue))
	workqueuetest.Eventually(t, "settled", func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		var have []string
		for i := range list.Items {
			have = append(have, fmt.Sprint(list.Items[i].Name, hasTaint(&list.Items[i], TaintOff)))
		}
		slices.Sort(have)
		return slices.Equal(have, []string{"2true", "3false", "4false"}), nil
	})
	if _, err := client.CoreV1().Nodes().Get(t.Context(), "1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
}

// paths is a provider's table of routes.
type paths struct {
	mu  sync.Mutex
	all []Route
}

func (p *paths) List(context.Context) ([]Route, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.all), nil
}

func (p *paths) Create(_ context.Context, r Route) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.all, func(o Route) bool { return o.Destination == r.Destination }) {
		return fmt.Errorf("there is a route to %s", r.Destination)
	}
	p.all = append(p.all, r)
	return nil
}

func (p *paths) Delete(_ context.Context, r Route) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.all = slices.DeleteFunc(p.all, func(o Route) bool { return o == r })
	return nil
}

func TestRoutesFollowTheNodes(t *testing.T) {
	p := &paths{all: []Route{{ID: "x", Node: "gone", Destination: "10.244.1.0/24"}, {ID: "y", Node: "2", Destination: "10.244.2.0/24"}}}
	client := start(t, func(e workqueue.Env) (workqueue.Runner, error) { return NewRoutes(e, p) }, node("1", v1.ConditionTrue), node("2", v1.ConditionTrue))
	has := func(want ...Route) func(context.Context) (bool, error) {
		return func(ctx context.Context) (bool, error) {
			have, err := p.List(ctx)
			return len(have) == len(want) && !slices.ContainsFunc(want, func(r Route) bool { return !slices.Contains(have, r) }), err
		}
	}
	workqueuetest.Eventually(t, "the lost node's route is another's", has(Route{"", "1", "10.244.1.0/24"}, Route{"y", "2", "10.244.2.0/24"}))
	workqueuetest.Eventually(t, "told", func(ctx context.Context) (bool, error) {
		n, err := client.CoreV1().Nodes().Get(ctx, "1", metav1.GetOptions{})
		return err == nil && networkKnown(n, true), err
	})
	if err := client.CoreV1().Nodes().Delete(t.Context(), "2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	workqueuetest.Eventually(t, "a node's end is its route's", has(Route{"", "1", "10.244.1.0/24"}))
}
