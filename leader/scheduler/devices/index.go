package devices

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/structured"
)

// index is what claims hold, in the form that the allocator reads.
type index struct {
	state structured.AllocatedState
	// users counts the claims of a device that is not shared. There is more than one only if another program allocates too.
	users map[structured.DeviceID]int
	held  map[types.UID]*resourceapi.AllocationResult
}

func newIndex() *index {
	return &index{
		state: structured.AllocatedState{
			AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
			AggregatedCapacity: structured.NewConsumedCapacityCollection(),
		},
		users: map[structured.DeviceID]int{},
		held:  map[types.UID]*resourceapi.AllocationResult{},
	}
}

// set says what the claim holds now; nil is nothing.
func (x *index) set(claim types.UID, now *resourceapi.AllocationResult) {
	if before := x.held[claim]; before != nil {
		x.remove(before)
		delete(x.held, claim)
	}
	if now != nil {
		x.add(now)
		x.held[claim] = now
	}
}

func (x *index) add(a *resourceapi.AllocationResult) {
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		switch id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device); {
		case monitors(r):
		case r.ShareID != nil:
			x.state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
			if r.ConsumedCapacity != nil {
				x.state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		default:
			x.users[id]++
			x.state.AllocatedDevices.Insert(id)
		}
	}
}

func (x *index) remove(a *resourceapi.AllocationResult) {
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		switch id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device); {
		case monitors(r):
		case r.ShareID != nil:
			x.state.AllocatedSharedDeviceIDs.Delete(structured.MakeSharedDeviceID(id, r.ShareID))
			if r.ConsumedCapacity != nil {
				x.state.AggregatedCapacity.Remove(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
			}
		default:
			if x.users[id]--; x.users[id] == 0 {
				delete(x.users, id)
				x.state.AllocatedDevices.Delete(id)
			}
		}
	}
}

// monitors reports whether the device is there for an administrator's eyes only, beside the claim that has it.
func monitors(r *resourceapi.DeviceRequestAllocationResult) bool {
	return r.AdminAccess != nil && *r.AdminAccess
}
