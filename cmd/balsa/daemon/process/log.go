package process

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"github.com/balsahq/balsa/cmd/balsa/daemon/logdedup"
)

// NewLogger writes to standard error; libraries that log through klog are
// heard from warnings on, unless the level is debug.
func NewLogger(level slog.Level) *slog.Logger {
	log := slog.New(logdedup.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))
	libraries := max(level, slog.LevelWarn)
	if level == slog.LevelDebug {
		libraries = level
	}
	klog.SetSlogLogger(slog.New(partings{logdedup.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: libraries}))}))
	return log
}

// partings leaves out what client-go and apiserver call errors when a term ends
// or a server stops: requests under way are given up then, on purpose.
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
