package raftstore_test

import (
	"time"

	"github.com/anishathalye/porcupine"
)

// linearizable asks porcupine. What no client did (leases that ran out,
// leaderships) is an operation of no client at an unknown time.
func (v *verdict) linearizable() {
	var ops []porcupine.Operation
	done := make(map[int64]bool)
	for i, op := range v.h.ops {
		if op.serial != "" || op.refused || !op.known && !op.happened {
			continue
		}
		if op.writes() {
			done[op.rev] = true
		}
		ops = append(ops, porcupine.Operation{ClientId: i, Input: op, Call: op.call, Output: op, Return: op.ret})
	}
	for rev := int64(2); rev <= v.h.newest; rev++ {
		if !done[rev] {
			s := v.states[rev]
			ops = append(ops, porcupine.Operation{ClientId: len(v.h.ops) + int(rev), Input: s, Call: 0, Output: s, Return: never})
		}
	}
	model := porcupine.Model{
		Init: func() any { return v.states[1] },
		Step: func(state, input, _ any) (bool, any) {
			s := state.(simState)
			if op, ok := input.(*simOp); ok {
				next, ok := s.admits(op)
				return ok, next
			}
			next := input.(simState)
			return next.rev == s.rev+1, next
		},
		Equal: func(a, b any) bool { return a.(simState).rev == b.(simState).rev && a == b },
		Hash:  func(a any) uint64 { return uint64(a.(simState).rev) },
	}
	switch porcupine.CheckOperationsTimeout(model, ops, 30*time.Second) {
	case porcupine.Illegal:
		v.failf("porcupine: the history of %d operations is not linearizable", len(ops))
	case porcupine.Unknown:
		v.failf("porcupine: no answer within 30 s on %d operations", len(ops))
	}
}
