// Package logdedup is a slog handler that writes a warning or an error that repeats once, and then how often it did.
//
//	record ──▶ below Warn ─────────────────────────▶ next
//	       └─▶ first of its key, or of its message ─▶ next
//	           else counted; at the end of the window "… repeated N times in the last 5m0s" ─▶ next
//
// The key is the level, the message and all attributes but those that differ each time (volatile, and long hexadecimal
// numbers, as containers have). A key that repeats
// has windows of 5 minutes, then 10, up to an hour; one that is silent for a window is forgotten. Messages that come
// with many different attributes, one for each node or pod, have a budget: the lines beyond it are counted for the
// message. Memory is bounded: when there are too many keys, all are told and forgotten.
package logdedup

import (
	"context"
	"hash/maphash"
	"log/slog"
	"regexp"
	"slices"
	"sync"
	"time"
)

const (
	firstWindow = 5 * time.Minute
	lastWindow  = time.Hour
	// budget is how many lines a message may have in a window, whatever their attributes.
	budget = 100
	// mostKeys bounds what is remembered.
	mostKeys = 2048
)

// volatile are attributes that do not make two records different.
var volatile = []string{"stack", "stacktrace", "took", "again_in", "again in"}

// identity is a number that something has for itself: two records that differ in it alone are the same.
var identity = regexp.MustCompile(`[0-9a-f]{16,}`)

// Handler implements slog.Handler.
type Handler struct {
	next  slog.Handler
	bound maphash.Hash // of the attributes and groups bound to it
	state *state
}

// state is shared by all handlers made from one.
type state struct {
	seed maphash.Seed

	mu       sync.Mutex
	keys     table
	messages table
}

// table is what was seen, by key or by message.
type table map[uint64]*seen

type seen struct {
	window time.Duration
	count  int // records that were not written in this window
	lines  int // of a message: those that were
	timer  *time.Timer
	next   slog.Handler
	last   slog.Record // not written
}

// New returns a handler in front of next.
func New(next slog.Handler) *Handler {
	h := &Handler{next: next, state: &state{seed: maphash.MakeSeed(), keys: table{}, messages: table{}}}
	h.bound.SetSeed(h.state.seed)
	return h
}

// Enabled implements slog.Handler.
func (h *Handler) Enabled(ctx context.Context, l slog.Level) bool { return h.next.Enabled(ctx, l) }

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	out := &Handler{next: h.next.WithAttrs(attrs), bound: h.bound, state: h.state}
	for _, a := range attrs {
		add(&out.bound, a)
	}
	return out
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	out := &Handler{next: h.next.WithGroup(name), bound: h.bound, state: h.state}
	_, _ = out.bound.WriteString("\x00group\x00" + name)
	return out
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelWarn {
		return h.next.Handle(ctx, r)
	}
	hash := h.bound
	_, _ = hash.WriteString(r.Level.String() + "\x00" + r.Message)
	message := hash.Sum64()
	r.Attrs(func(a slog.Attr) bool { add(&hash, a); return true })
	if !h.state.pass(h.next, r, hash.Sum64(), message) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func add(h *maphash.Hash, a slog.Attr) {
	if !slices.Contains(volatile, a.Key) {
		_, _ = h.WriteString("\x00" + a.Key + "\x00" + identity.ReplaceAllString(a.Value.Resolve().String(), "#"))
	}
}

// pass reports whether a record is to be written: the first of its key, while its message has lines left. Any other is
// counted.
func (s *state) pass(next slog.Handler, r slog.Record, key, message uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.keys[key]; one != nil {
		one.hold(r)
		return false
	}
	m := s.messages[message]
	if m == nil {
		m = s.begin(s.messages, message, next)
	}
	if m.lines >= budget {
		m.hold(slog.NewRecord(r.Time, r.Level, r.Message, r.PC))
		return false
	}
	m.lines++
	s.begin(s.keys, key, next)
	return true
}

func (one *seen) hold(r slog.Record) {
	one.count++
	one.last = r.Clone()
}

// begin begins the first window of a key. A table that is full is told and emptied before.
func (s *state) begin(t table, key uint64, next slog.Handler) *seen {
	if len(t) >= mostKeys {
		for key, one := range t {
			one.timer.Stop()
			one.tell()
			delete(t, key)
		}
	}
	one := &seen{window: firstWindow, next: next}
	one.timer = time.AfterFunc(one.window, func() { s.end(t, key, one) })
	t[key] = one
	return one
}

// end tells of a window that is over, and begins the next one if anything repeated.
func (s *state) end(t table, key uint64, one *seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t[key] != one {
		return
	}
	if one.count == 0 {
		delete(t, key)
		return
	}
	one.tell()
	one.count, one.lines = 0, 0
	one.window = min(2*one.window, lastWindow)
	one.timer.Reset(one.window)
}

// tell writes how often a record has repeated, with the attributes of the last one.
func (one *seen) tell() {
	if one.count == 0 {
		return
	}
	r := one.last.Clone()
	r.Time = time.Now()
	r.AddAttrs(slog.Int("repeated", one.count), slog.Duration("within", one.window))
	_ = one.next.Handle(context.Background(), r)
}
