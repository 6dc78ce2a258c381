package realtest

import (
	"context"
	"testing"
	"time"

	criapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type timed struct {
	criapi.RuntimeService
	t *testing.T
}

func (r timed) RunPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, h string) (string, error) {
	b := time.Now()
	defer func() { r.t.Logf("%s sandbox %v", c.Metadata.Name, time.Since(b)) }()
	return r.RuntimeService.RunPodSandbox(ctx, c, h)
}
func (r timed) CreateContainer(ctx context.Context, id string, c *runtimeapi.ContainerConfig, s *runtimeapi.PodSandboxConfig) (string, error) {
	b := time.Now()
	defer func() { r.t.Logf("%s create %v", s.Metadata.Name, time.Since(b)) }()
	return r.RuntimeService.CreateContainer(ctx, id, c, s)
}
func (r timed) StartContainer(ctx context.Context, id string) error {
	b := time.Now()
	defer func() { r.t.Logf("start %v", time.Since(b)) }()
	return r.RuntimeService.StartContainer(ctx, id)
}

func TestTiming(t *testing.T) {
	m := newMachine(t)
	m.stop()
	m.timed = true
	m.startAgent()
	for i := range 8 {
		name := string(rune('b' + i))
		began := time.Now()
		m.pod(name, nil)
		m.awaitReady(name)
		t.Logf("%s ready after %v", name, time.Since(began))
	}
}
