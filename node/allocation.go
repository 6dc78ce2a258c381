package node

import (
	"context"
	"errors"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/balsahq/balsa/node/allocation"
	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/topology"
)

// allocator is the Manager as workers see it.
type allocator struct{ *allocation.Manager }

// Admit implements podworker.Allocator.
func (a *allocator) Admit(ctx context.Context, pod *v1.Pod) *podloop.Failure {
	var refused *allocation.Refusal
	if err := a.Manager.Admit(ctx, pod); errors.As(err, &refused) {
		return &podloop.Failure{Reason: refused.Reason, Message: refused.Message}
	}
	return nil
}

// newAllocator makes the parts that give pods what they have for themselves of the machine.
func (a *Agent) newAllocator() error {
	var err error
	a.devices, err = deviceplugin.New(deviceplugin.Config{
		Dir: filepath.Join(a.cfg.RootDir, "device-plugins"), NUMANodes: topology.NodesOf(0),
		Changed: a.nudge, HealthChanged: a.wakePods, Logger: a.log,
	})
	if err != nil {
		return err
	}
	if a.followDevices == nil {
		a.followDevices = a.devices.Run
	}
	m, err := allocation.New(allocation.Config{Policy: topology.None, Scope: topology.Container, NUMANodes: topology.NodesOf(0), Devices: a.devices})
	a.allocator = &allocator{m}
	return err
}

// wakePods makes workers look at their pods again.
func (a *Agent) wakePods(uids []types.UID) {
	for _, uid := range uids {
		if w := a.worker(uid); w != nil {
			w.Wake()
		}
	}
}
