// Package eventhandler contains panics of informers' event handlers.
package eventhandler

import (
	"k8s.io/client-go/tools/cache"

	"github.com/balsahq/balsa/fault"
)

// Contain returns h with its panics contained. An event whose handler panics is delivered again up to three times
// within about a second. Then it is dropped; the object's next event is handled as usual.
func Contain(unit string, h cache.ResourceEventHandler) cache.ResourceEventHandler {
	return contained{unit: unit, next: h}
}

type contained struct {
	unit string
	next cache.ResourceEventHandler
}

// OnAdd implements cache.ResourceEventHandler.
func (c contained) OnAdd(o any, initial bool) {
	_ = fault.Retry(c.unit, func() { c.next.OnAdd(o, initial) })
}

// OnUpdate implements cache.ResourceEventHandler.
func (c contained) OnUpdate(old, now any) {
	_ = fault.Retry(c.unit, func() { c.next.OnUpdate(old, now) })
}

// OnDelete implements cache.ResourceEventHandler.
func (c contained) OnDelete(o any) {
	_ = fault.Retry(c.unit, func() { c.next.OnDelete(o) })
}
