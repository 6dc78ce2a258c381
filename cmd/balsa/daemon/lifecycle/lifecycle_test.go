package lifecycle

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

func TestPartsStopInReverseOrderEachAfterTheOneAbove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(slog.New(slog.DiscardHandler))
		var mu sync.Mutex
		var ended []string
		for _, name := range []string{"store", "API", "leader"} {
			p.Start(name, func(ctx context.Context) error {
				<-ctx.Done()
				mu.Lock()
				defer mu.Unlock()
				ended = append(ended, name)
				return nil
			})
		}
		p.Stop()
		if want := []string{"leader", "API", "store"}; !slices.Equal(ended, want) {
			t.Errorf("ended %v, want %v", ended, want)
		}
	})
}

func TestPartsReportTheFirstFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(slog.New(slog.DiscardHandler))
		fault := errors.New("fault")
		p.Start("good", func(ctx context.Context) error { <-ctx.Done(); return nil })
		p.Start("bad", func(context.Context) error { return fault })
		if err := p.Wait(t.Context(), nil); !errors.Is(err, fault) {
			t.Errorf("got %v", err)
		}
		p.Stop()
	})
}

func TestAPartThatEndsByItselfIsAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(slog.New(slog.DiscardHandler))
		p.Start("short", func(context.Context) error { return nil })
		if err := p.Wait(t.Context(), nil); err == nil {
			t.Error("nobody noticed")
		}
		p.Stop()
	})
}
