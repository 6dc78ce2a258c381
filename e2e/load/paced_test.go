package load

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestPacedKeepsItsPaceWhileOneIsFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var stuck, wrote atomic.Int64
		writers := []func(context.Context) error{
			func(ctx context.Context) error { stuck.Add(1); time.Sleep(10 * time.Second); return nil },
			func(context.Context) error { wrote.Add(1); return nil },
		}
		sent, err := Paced(t.Context(), 50, time.Now().Add(2*time.Second), writers)
		if err != nil || sent < 98 || sent > 100 || sent != stuck.Load()+wrote.Load() {
			t.Errorf("%d sent, %d by the stuck one: %v", sent, stuck.Load(), err)
		}
	})
}

func TestPacedEndsWithTheFirstError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := errors.New("full")
		began := time.Now()
		sent, err := Paced(t.Context(), 10, began.Add(time.Hour), []func(context.Context) error{func(context.Context) error { return full }})
		if !errors.Is(err, full) || sent != 0 || time.Since(began) > time.Second {
			t.Errorf("%d sent in %v: %v", sent, time.Since(began), err)
		}
	})
}
