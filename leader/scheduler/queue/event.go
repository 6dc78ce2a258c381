package queue

import (
	v1 "k8s.io/api/core/v1"
)

// Kind is the kind of object an event is about.
type Kind uint8

// The kinds of objects whose changes can make a pod schedulable.
const (
	Node Kind = iota
	Pod       // a pod on a node
	Claim
	Volume
	StorageClass
	CSINode
	Namespace
)

// Action is what happened to it; a set of bits.
type Action uint8

// Actions. An update that cannot be told apart further is Update.
const (
	Add Action = 1 << iota
	Update
	Delete
)

// Event is something that happened in the cluster. Old and New are the object before and after, as far as they exist.
type Event struct {
	Kind     Kind
	Action   Action
	Old, New any
}

// Hint says which events may make a pod schedulable that a rule refused. Helps looks closer; nil means always.
type Hint struct {
	Kind   Kind
	Action Action
	Helps  func(pod *v1.Pod, e Event) bool
}

func (h Hint) applies(pod *v1.Pod, e Event) bool {
	return h.Kind == e.Kind && h.Action&e.Action != 0 && (h.Helps == nil || h.Helps(pod, e))
}
