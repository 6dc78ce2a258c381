package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"github.com/balsahq/balsa/node/allocation"
	"github.com/balsahq/balsa/node/cpumanager"
	"github.com/balsahq/balsa/node/deviceplugin"
	"github.com/balsahq/balsa/node/machine"
	"github.com/balsahq/balsa/node/podloop"
	"github.com/balsahq/balsa/node/podresources"
	"github.com/balsahq/balsa/node/topology"
)

// Allocation says how pods get CPUs of their own, and how near to each other what a pod has is to be.
type Allocation struct {
	CPUs       cpumanager.Policy // default none
	CPUOptions cpumanager.Options
	// ReservedCPUs are kept from pods that get CPUs of their own, and taken off the allocatable CPUs. When it is empty, as
	// many CPUs are kept back as Config.Reserved says.
	ReservedCPUs cpuset.CPUSet
	Topology     topology.Policy // default none
	Scope        topology.Scope  // default container
}

func (a *Allocation) setDefaults() {
	if a.CPUs == "" {
		a.CPUs = cpumanager.None
	}
	if a.Topology == "" {
		a.Topology = topology.None
	}
	if a.Scope == "" {
		a.Scope = topology.Container
	}
}

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
	hardware, err := machine.Read(machine.Dir)
	if err != nil {
		if a.cfg.Allocation.CPUs != cpumanager.None || a.cfg.Allocation.Topology != topology.None {
			return err
		}
		hardware = &machine.Topology{} // nothing asks for it
	}
	a.devices, err = deviceplugin.New(deviceplugin.Config{
		Dir: filepath.Join(a.cfg.RootDir, "device-plugins"), NUMANodes: hardware.Nodes(),
		Changed: a.nudge, HealthChanged: a.wakePods, Logger: a.log,
	})
	if err != nil {
		return err
	}
	if a.followDevices == nil {
		a.followDevices = a.devices.Run
	}
	if a.cpus, err = a.newCPUManager(hardware); err != nil {
		return err
	}
	if a.servePodResources == nil {
		a.servePodResources = a.newPodResources().Run
	}
	m, err := allocation.New(allocation.Config{
		Policy: a.cfg.Allocation.Topology, Scope: a.cfg.Allocation.Scope, NUMANodes: hardware.Nodes(), Devices: a.devices, CPUs: a.cpus,
	})
	a.allocator = &allocator{m}
	return err
}

func (a *Agent) newCPUManager(hardware *machine.Topology) (*cpumanager.Manager, error) {
	reserved := a.cfg.Allocation.ReservedCPUs
	if kept := a.cfg.Reserved.Cpu(); a.cfg.Allocation.CPUs == cpumanager.Static && reserved.IsEmpty() {
		var err error
		if reserved, err = cpumanager.Reserve(hardware, int(kept.Value())); err != nil {
			return nil, fmt.Errorf("reserved CPUs: %w", err)
		}
	}
	return cpumanager.New(cpumanager.Config{
		Policy: a.cfg.Allocation.CPUs, Options: a.cfg.Allocation.CPUOptions, Machine: hardware, Reserved: reserved,
		StateFile: filepath.Join(a.cfg.RootDir, "cpu_manager_state"), Changed: a.nudgeCPUSets, Logger: a.log,
	})
}

// newPodResources returns the server that tells programs of this machine what pods have.
func (a *Agent) newPodResources() *podresources.Server {
	return podresources.New(podresources.Config{
		Dir: filepath.Join(a.cfg.RootDir, "pod-resources"), Pods: a.activePods,
		Devices: a.devices.Devices, AllDevices: a.devices.AllDevices, AllCPUs: a.cpus.Allocatable,
		CPUs: func(uid types.UID, container string) cpuset.CPUSet {
			set, _ := a.cpus.Exclusive(uid, container)
			return set
		},
	})
}

// activePods returns the pods that run here or are about to.
func (a *Agent) activePods() (pods []*v1.Pod) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, w := range a.workers {
		if takesRoom(w) {
			pods = append(pods, w.View().Pod)
		}
	}
	return pods
}

// wakePods makes workers look at their pods again.
func (a *Agent) wakePods(uids []types.UID) {
	for _, uid := range uids {
		if w := a.worker(uid); w != nil {
			w.Wake()
		}
	}
}
