package allocation

import (
	"errors"
	"log/slog"
	"testing"

	v1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"os"
	"path/filepath"

	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/topology"
)

// knownDevices returns a manager that knows a resource from before, whose plug-in is not there.
func knownDevices(t *testing.T) *deviceplugin.Manager {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "balsa_allocations.json"), []byte(`{"resources":["example.com/gpu"]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	m, err := deviceplugin.New(deviceplugin.Config{Dir: dir, Changed: func() {}, HealthChanged: func([]types.UID) {}, Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func podWith(limits v1.ResourceList) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Spec: v1.PodSpec{Containers: []v1.Container{
		{Name: "c", Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}}}}
}

func TestAPodWhoseDevicesAreNotThereIsRefused(t *testing.T) {
	m, err := New(Config{Policy: topology.None, Scope: topology.Container, NUMANodes: 1, Devices: knownDevices(t)})
	if err != nil {
		t.Fatal(err)
	}
	pod := podWith(v1.ResourceList{"example.com/gpu": quantity.MustParse("1")})
	var refused *Refusal
	if err := m.Admit(t.Context(), pod); !errors.As(err, &refused) || refused.Reason != "UnexpectedAdmissionError" ||
		refused.Message != "Allocate failed due to cannot allocate unregistered device example.com/gpu, which is unexpected" {
		t.Errorf("got %v", err)
	}
	if err := m.Admit(t.Context(), podWith(nil)); err != nil {
		t.Errorf("a pod that wants nothing: %v", err)
	}
}

func TestPoliciesThatTheMachineCannotHave(t *testing.T) {
	for name, cfg := range map[string]Config{
		"unknown policy":      {Policy: "all", Scope: topology.Pod, NUMANodes: 1},
		"unknown scope":       {Policy: topology.None, Scope: "node", NUMANodes: 1},
		"too many NUMA nodes": {Policy: topology.Restricted, Scope: topology.Pod, NUMANodes: 1<<9 - 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
