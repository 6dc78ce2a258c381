// Package loglevel decides which lines of the log are written: one level for all, and others for some components. The levels
// may be changed while the process runs.
//
//	info,leader/scheduler=debug,kubernetes=error
//
// A component is a folder of Balsa's source, and what is below it; the longest that fits counts. The Kubernetes libraries are
// the component "kubernetes". Without a level of its own it logs from warning on, or everything at debug.
package loglevel

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
)

// Libraries is the component of the Kubernetes libraries.
const Libraries = "kubernetes"

const module = "github.com/balsahq/balsa/"

// mostComponents bounds a setting.
const mostComponents = 50

// Setting is what is logged. It does not change.
type Setting struct {
	all  slog.Level
	some map[string]slog.Level // by component
	// least is the lowest of all these levels.
	least slog.Level
}

var componentName = regexp.MustCompile(`^[a-z0-9/_-]{1,100}$`)

// Parse reads a setting. The error says what is wrong.
func Parse(text string) (*Setting, error) {
	s := &Setting{all: slog.LevelInfo, some: map[string]slog.Level{}}
	seen := false
	for _, part := range strings.Split(text, ",") {
		component, name, single := strings.Cut(strings.TrimSpace(part), "=")
		if !single {
			component, name = "", component
		}
		var level slog.Level
		if err := level.UnmarshalText([]byte(name)); err != nil {
			return nil, fmt.Errorf("%q: give debug, info, warn or error, and for a component COMPONENT=LEVEL", part)
		}
		switch {
		case !single && seen:
			return nil, fmt.Errorf("%q: give one level for all", text)
		case !single:
			s.all, seen = level, true
		case !componentName.MatchString(component) || len(s.some) == mostComponents:
			return nil, fmt.Errorf("%q: a component is a folder of the source, such as leader/scheduler; at most %d of them", part, mostComponents)
		default:
			s.some[strings.Trim(component, "/")] = level
		}
	}
	s.least = s.all
	for _, level := range s.some {
		s.least = min(s.least, level)
	}
	return s, nil
}

// String returns the setting as Parse reads it.
func (s *Setting) String() string {
	parts := []string{strings.ToLower(s.all.String())}
	for _, c := range slices.Sorted(maps.Keys(s.some)) {
		parts = append(parts, c+"="+strings.ToLower(s.some[c].String()))
	}
	return strings.Join(parts, ",")
}

// Of returns the level of a component.
func (s *Setting) Of(component string) slog.Level {
	for c := component; c != "." && c != ""; c = parent(c) {
		if level, ok := s.some[c]; ok {
			return level
		}
	}
	if component == Libraries && s.all > slog.LevelDebug {
		return max(s.all, slog.LevelWarn)
	}
	return s.all
}

func parent(component string) string {
	i := strings.LastIndexByte(component, '/')
	if i < 0 {
		return ""
	}
	return component[:i]
}

// Levels is the setting of a process.
type Levels struct{ now atomic.Pointer[Setting] }

// New returns Levels that begin with s.
func New(s *Setting) *Levels {
	l := &Levels{}
	l.now.Store(s)
	return l
}

// At returns Levels of one level for all.
func At(level slog.Level) *Levels { return New(&Setting{all: level, least: level}) }

// Get returns the setting of now.
func (l *Levels) Get() *Setting { return l.now.Load() }

// Set changes the setting.
func (l *Levels) Set(s *Setting) { l.now.Store(s) }

// Handler returns a slog.Handler in front of next, for lines of a component. With "" each line's own place in the source tells
// its component.
func (l *Levels) Handler(component string, next slog.Handler) slog.Handler {
	return handler{Handler: next, levels: l, component: component}
}

type handler struct {
	slog.Handler
	levels    *Levels
	component string
}

// Enabled implements slog.Handler.
func (h handler) Enabled(_ context.Context, level slog.Level) bool {
	s := h.levels.Get()
	if h.component != "" {
		return level >= s.Of(h.component)
	}
	return level >= s.least
}

// Handle implements slog.Handler. Where no component has a level of its own, it does not look for the line's.
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	if s := h.levels.Get(); h.component == "" && len(s.some) > 0 && r.Level < s.Of(componentAt(r.PC)) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	h.Handler = h.Handler.WithGroup(name)
	return h
}

// componentAt returns the folder of the function at a program counter, such as leader/scheduler; "" when it is not Balsa's.
func componentAt(pc uintptr) string {
	if pc == 0 {
		return ""
	}
	frame, _ := runtime.CallersFrames([]uintptr{pc}).Next()
	path, ours := strings.CutPrefix(frame.Function, module)
	if !ours {
		return ""
	}
	folder, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		folder, name = path[:i+1], path[i+1:]
	}
	name, _, _ = strings.Cut(name, ".")
	return folder + name
}
