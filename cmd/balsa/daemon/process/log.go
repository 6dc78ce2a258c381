package process

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/cmd/balsa/daemon/logdedup"
	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
)

// NewLogger returns a logger that writes to standard error what levels let through. It also sets klog, through which the
// Kubernetes libraries log.
func NewLogger(levels *loglevel.Levels) *slog.Logger {
	write := func() slog.Handler {
		return logdedup.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	klog.SetSlogLogger(slog.New(levels.Handler(loglevel.Libraries, partings{write()})))
	return slog.New(levels.Handler("", write()))
}

// partings drops the errors that client-go and apiserver log when a term ends or a
// server stops, because their requests are canceled on purpose then.
type partings struct{ slog.Handler }

// Handle implements slog.Handler.
func (p partings) Handle(ctx context.Context, r slog.Record) error {
	given := strings.HasPrefix(r.Message, "Unable to write event")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "err" {
			text := a.Value.String()
			given = given || strings.Contains(text, "post-timeout activity") || strings.HasSuffix(text, context.Canceled.Error())
		}
		return !given
	})
	if given {
		return nil
	}
	return p.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (p partings) WithAttrs(attrs []slog.Attr) slog.Handler {
	return partings{p.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (p partings) WithGroup(name string) slog.Handler { return partings{p.Handler.WithGroup(name)} }
