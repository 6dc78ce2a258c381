package eviction

import (
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal names something that a node can run short of, as flags and upstream name it.
type Signal string

const (
	MemoryAvailable Signal = "memory.available"
	// AllocatableMemoryAvailable is what the pods together have left of their memory limit. It has the threshold of
	// MemoryAvailable: the kernel kills a process when that limit is reached, though the machine may have memory left.
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
	NodeFsAvailable            Signal = "nodefs.available"
	NodeFsInodesFree           Signal = "nodefs.inodesFree"
	ImageFsAvailable           Signal = "imagefs.available"
	ImageFsInodesFree          Signal = "imagefs.inodesFree"
	PIDAvailable               Signal = "pid.available"
)

// Resources that messages name and that no request can name.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// signals is the table of all signals, in the order in which shortages are dealt with: a machine without memory can do
// nothing else.
var signals = []struct {
	signal    Signal
	resource  v1.ResourceName
	condition v1.NodeConditionType
}{
	{MemoryAvailable, v1.ResourceMemory, v1.NodeMemoryPressure},
	{AllocatableMemoryAvailable, v1.ResourceMemory, v1.NodeMemoryPressure},
	{NodeFsAvailable, v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	{NodeFsInodesFree, inodes, v1.NodeDiskPressure},
	{ImageFsAvailable, v1.ResourceEphemeralStorage, v1.NodeDiskPressure},
	{ImageFsInodesFree, inodes, v1.NodeDiskPressure},
	{PIDAvailable, pids, v1.NodePIDPressure},
}

// place returns the signal's row in signals; -1 for an unknown signal.
func (s Signal) place() int {
	for i := range signals {
		if signals[i].signal == s {
			return i
		}
	}
	return -1
}

func (s Signal) resource() v1.ResourceName       { return signals[s.place()].resource }
func (s Signal) condition() v1.NodeConditionType { return signals[s.place()].condition }

// OfDisk reports whether the signal is about a file system.
func (s Signal) OfDisk() bool { return s.condition() == v1.NodeDiskPressure }

// OfPIDs reports whether the signal is about processes.
func (s Signal) OfPIDs() bool { return s.condition() == v1.NodePIDPressure }

func (s Signal) ofImageFs() bool { return s == ImageFsAvailable || s == ImageFsInodesFree }

// Value is an amount, or a fraction of a capacity when Amount is nil.
type Value struct {
	Amount   *resource.Quantity
	Fraction float64
}

// of returns the value in the unit of capacity.
func (v Value) of(capacity int64) resource.Quantity {
	if v.Amount != nil {
		return v.Amount.DeepCopy()
	}
	return *resource.NewQuantity(int64(float64(capacity)*v.Fraction), resource.BinarySI)
}

// Threshold is crossed when less than Value is left of what its signal is about.
type Threshold struct {
	Signal Signal
	Value  Value
	// Soft thresholds count after they were crossed for Grace without a pause. Hard ones count at once.
	Soft  bool
	Grace time.Duration
	// MinReclaim is how much more than Value must be left before the shortage is over.
	MinReclaim Value
}

// Observation is what is left of something, and of how much.
type Observation struct {
	Available, Capacity int64
	At                  time.Time
}

// Observations holds one observation for each signal that can be observed.
type Observations map[Signal]Observation

// Resource returns what is short when t is crossed.
func (t Threshold) Resource() v1.ResourceName { return t.Signal.resource() }

// Distance returns how much less of what s is about has to be left until the next threshold is crossed; false when there is
// none or all are.
func (c Config) Distance(s Signal, seen Observations) (least int64, ok bool) {
	for _, t := range c.Thresholds {
		o, known := seen[s]
		if t.Signal != s || !known || t.crossed(seen, Value{}) {
			continue
		}
		value := t.Value.of(o.Capacity)
		if d := o.Available - value.Value(); !ok || d < least {
			least, ok = d, true
		}
	}
	return least, ok
}

// available returns the observation in the form of messages.
func (o Observation) available(s Signal) resource.Quantity {
	format := resource.BinarySI
	if s.resource() == inodes || s.resource() == pids {
		format = resource.DecimalSI
	}
	return *resource.NewQuantity(o.Available, format)
}

// crossed reports whether t is crossed; margin is added to its value.
func (t Threshold) crossed(o Observations, margin Value) bool {
	seen, ok := o[t.Signal]
	if !ok {
		return false
	}
	least, more := t.Value.of(seen.Capacity), margin.of(seen.Capacity)
	least.Add(more)
	return seen.Available < least.Value()
}
