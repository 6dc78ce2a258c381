package quota

import (
	"errors"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/balsahq/balsa/fault"
	"github.com/balsahq/balsa/leader/workqueue"
)

func TestAPanicInCountingDevicesLeavesNoLockHeld(t *testing.T) {
	c := &controller{env: workqueue.Env{Reader: fake.NewClientset()}} // no registry: adding to it panics
	err := fault.Contain("test", func() error { return c.countDevices(t.Context()) })
	if !errors.Is(err, fault.ErrPanic) {
		t.Fatalf("no panic: %v", err)
	}
	if !c.mu.TryLock() {
		t.Fatal("the lock is held")
	}
	c.mu.Unlock()
}
