// Package logdedup is a slog handler that writes a repeated warning or error only once, and later how often it was repeated.
//
//	record ──▶ below Warn ───────▶ next
//	       └─▶ first of its key ─▶ next
//	       └─▶ repeated: counted; at the end of the window the last record, with repeated=N within=5m0s ─▶ next
//
// The key is the level, the message and the attributes, without attributes that differ each time (volatile) and without
// long hexadecimal numbers such as the IDs of containers. The first window of a key lasts 5 minutes. While the key repeats,
// each window lasts twice as long as the one before, up to an hour. A key without a record in a window is forgotten.
// A message with many different attributes, such as one for each pod, has a budget of lines in a window; further records
// are counted for the message. Memory is bounded: when there are too many keys, all their counts are written and all keys
// are forgotten.
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
	// budget bounds the lines of one message in a window, whatever their attributes.
	budget = 100
	// mostKeys bounds the keys, and the messages, that are remembered.
	mostKeys = 2048
)

// volatile are the attributes that are not part of the key, because they differ each time.
var volatile = []string{"stack", "stacktrace", "took", "again_in", "again in"}

// hexID matches the hexadecimal ID of a container and the like. Records that differ only in such IDs have one key.
var hexID = regexp.MustCompile(`[0-9a-f]{16,}`)

// Handler implements slog.Handler.
type Handler struct {
	next  slog.Handler
	bound maphash.Hash // of the attributes and groups of WithAttrs and WithGroup
	state *state
}

// state is shared by a handler and all handlers that WithAttrs and WithGroup made of it.
type state struct {
	seed maphash.Seed

	mu       sync.Mutex
	keys     table
	messages table
}

// table holds the records that were seen, by the hash of their key or of their message.
type table map[uint64]*seen

type seen struct {
	window time.Duration
	count  int // records of this window that were not written
	lines  int // of a message: records of this window that were written
	timer  *time.Timer
	next   slog.Handler
	last   slog.Record // the last one that was not written
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
		_, _ = h.WriteString("\x00" + a.Key + "\x00" + hexID.ReplaceAllString(a.Value.Resolve().String(), "#"))
	}
}

// pass reports whether a record is to be written: it is the first of its key, and its message has lines left in this
// window. Any other record is counted.
func (s *state) pass(next slog.Handler, r slog.Record, key, message uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one := s.keys[key]; one != nil {
		one.countRepeat(r)
		return false
	}
	m := s.messages[message]
	if m == nil {
		m = s.startWindow(s.messages, message, next)
	}
	if m.lines >= budget {
		m.countRepeat(slog.NewRecord(r.Time, r.Level, r.Message, r.PC))
		return false
	}
	m.lines++
	s.startWindow(s.keys, key, next)
	return true
}

func (one *seen) countRepeat(r slog.Record) {
	one.count++
	one.last = r.Clone()
}

// startWindow starts the first window of a key. When the table is full, it first writes all counts and empties the table.
func (s *state) startWindow(t table, key uint64, next slog.Handler) *seen {
	if len(t) >= mostKeys {
		for key, one := range t {
			one.timer.Stop()
			one.writeCount()
			delete(t, key)
		}
	}
	one := &seen{window: firstWindow, next: next}
	one.timer = time.AfterFunc(one.window, func() { s.endWindow(t, key, one) })
	t[key] = one
	return one
}

// endWindow writes the count of a window. It starts the next one when the key was repeated, and else forgets the key.
func (s *state) endWindow(t table, key uint64, one *seen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t[key] != one {
		return
	}
	if one.count == 0 {
		delete(t, key)
		return
	}
	one.writeCount()
	one.count, one.lines = 0, 0
	one.window = min(2*one.window, lastWindow)
	one.timer.Reset(one.window)
}

// writeCount writes how often a record was repeated in the window, with the attributes of the last one.
func (one *seen) writeCount() {
	if one.count == 0 {
		return
	}
	r := one.last.Clone()
	r.Time = time.Now()
	r.AddAttrs(slog.Int("repeated", one.count), slog.Duration("within", one.window))
	_ = one.next.Handle(context.Background(), r)
}
