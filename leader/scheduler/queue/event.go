package queue

import (
	v1 "k8s.io/api/core/v1"
)

// Kind is the kind of an event's object.
type Kind uint8

// The kinds of objects whose changes can make a pod schedulable.
const (
	Node Kind = iota
	Pod       // a pod on a node
	Claim
	Volume
	StorageClass
	CSINode
	CSIDriver
	StorageCapacity
	Namespace
	ResourceClaim
	ResourceSlice
	DeviceClass
)

// Action is a set of changes, as bits.
type Action uint8

// The actions.
const (
	Add Action = 1 << iota
	Update
	Delete
)

// Event is a change of an object in the cluster. Old and New are the object before and after, as far as they exist.
type Event struct {
	Kind     Kind
	Action   Action
	Old, New any
}

// Hint names events that may make a pod schedulable that a rule refused. Helps decides about a single event; nil accepts every one.
type Hint struct {
	Kind   Kind
	Action Action
	Helps  func(pod *v1.Pod, e Event) bool
}

func (h Hint) applies(pod *v1.Pod, e Event) bool {
	return h.Kind == e.Kind && h.Action&e.Action != 0 && (h.Helps == nil || h.Helps(pod, e))
}
