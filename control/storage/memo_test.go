package storage

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWhatNobodyUsesIsLetGo: decoded objects are kept while they are used, and no
// timer runs when there are none.
func TestWhatNobodyUsesIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMemos(1 << 20)
		hot, cold := &decoded{size: 100}, &decoded{size: 10}
		m.keep(hot)
		m.keep(cold)
		kept := func() int { m.mu.Lock(); defer m.mu.Unlock(); return m.bytes }
		for range 5 {
			hot.used.Store(true)
			time.Sleep(dropUnusedEvery)
			synctest.Wait()
		}
		if kept() != hot.size {
			t.Errorf("%d bytes are kept while one object of %d is used", kept(), hot.size)
		}
		time.Sleep(3 * dropUnusedEvery)
		synctest.Wait()
		if kept() != 0 || m.dropPending {
			t.Errorf("%d bytes are kept that nobody uses", kept())
		}
		m.keep(cold) // and it begins anew
		time.Sleep(3 * dropUnusedEvery)
		synctest.Wait()
		if kept() != 0 {
			t.Errorf("%d bytes are kept that nobody uses, the second time", kept())
		}
	})
}
