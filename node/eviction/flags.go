package eviction

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Flags holds the settings as the administrator writes them, by signal. Names, syntax and defaults are the kubelet's.
type Flags struct {
	Hard, Soft, SoftGrace, MinimumReclaim map[string]string
	// MaxPodGrace bounds the grace period, in seconds, of pods that a soft threshold evicts.
	MaxPodGrace int
	// TransitionPeriod is how long a condition of the node stays after its cause was last seen.
	TransitionPeriod time.Duration
}

// DefaultFlags returns the kubelet's defaults.
func DefaultFlags() Flags {
	return Flags{
		Hard: map[string]string{
			string(MemoryAvailable): "100Mi", string(NodeFsAvailable): "10%", string(NodeFsInodesFree): "5%",
			string(ImageFsAvailable): "15%", string(ImageFsInodesFree): "5%",
		},
		Soft: map[string]string{}, SoftGrace: map[string]string{}, MinimumReclaim: map[string]string{},
		TransitionPeriod: 5 * time.Minute,
	}
}

// Config says when pods are evicted. The zero Config evicts none.
type Config struct {
	Thresholds       []Threshold
	MaxPodGrace      int64 // seconds
	TransitionPeriod time.Duration
}

// Parse returns the thresholds in the order of the table of signals, hard ones first. It reports every fault at once.
func (f Flags) Parse() (Config, error) {
	p := parser{}
	grace := p.each("eviction-soft-grace-period", f.SoftGrace, func(s Signal, text string) (any, error) {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return nil, fmt.Errorf("%s=%s: give a time such as 90s", s, text)
		}
		if f.Soft[string(s)] == "" {
			return nil, fmt.Errorf("%s=%s: --eviction-soft has no threshold of this signal", s, text)
		}
		return d, nil
	})
	reclaim := p.each("eviction-minimum-reclaim", f.MinimumReclaim, func(s Signal, text string) (any, error) {
		v, err := parseValue(text)
		if err != nil {
			return nil, fmt.Errorf("%s=%s: %w", s, text, err)
		}
		return v, nil
	})
	out := Config{MaxPodGrace: int64(f.MaxPodGrace), TransitionPeriod: f.TransitionPeriod}
	add := func(flag string, texts map[string]string, soft bool) {
		values := p.each(flag, texts, func(s Signal, text string) (any, error) { return threshold(s, text) })
		for _, row := range signals {
			if t, ok := values[row.signal].(*Threshold); ok && t != nil {
				t.Soft = soft
				if d, given := grace[row.signal].(time.Duration); given && soft {
					t.Grace = d
				} else if soft && f.SoftGrace[string(row.signal)] == "" {
					p.fault("--%s %s: --eviction-soft-grace-period has no time for it", flag, row.signal)
				}
				t.MinReclaim, _ = reclaim[row.signal].(Value)
				out.Thresholds = append(out.Thresholds, *t)
			}
		}
	}
	add("eviction-hard", f.Hard, false)
	add("eviction-soft", f.Soft, true)
	if f.MaxPodGrace < 0 {
		p.fault("--eviction-max-pod-grace-period %d: give 0 or more seconds", f.MaxPodGrace)
	}
	if f.TransitionPeriod < 0 {
		p.fault("--eviction-pressure-transition-period %s: give 0 or more", f.TransitionPeriod)
	}
	out.Thresholds = withAllocatable(out.Thresholds)
	return out, errors.Join(p.faults...)
}

// withAllocatable adds the threshold of the pods' memory limit to the hard one of the machine's memory.
func withAllocatable(in []Threshold) []Threshold {
	for i, t := range in {
		if t.Signal == MemoryAvailable && !t.Soft {
			t.Signal = AllocatableMemoryAvailable
			return slices.Insert(slices.Clone(in), i+1, t)
		}
	}
	return in
}

type parser struct{ faults []error }

func (p *parser) fault(format string, args ...any) {
	p.faults = append(p.faults, fmt.Errorf(format, args...))
}

// each parses the values of one flag, and reports signals that it cannot have.
func (p *parser) each(flag string, texts map[string]string, parse func(Signal, string) (any, error)) map[Signal]any {
	out := map[Signal]any{}
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		s := Signal(name)
		switch {
		case s == AllocatableMemoryAvailable:
			p.fault("--%s %s: it has the threshold of %s", flag, s, MemoryAvailable)
		case strings.HasPrefix(name, "containerfs."):
			p.fault("--%s %s: containers are on the file system of images; set imagefs.%s", flag, s, strings.TrimPrefix(name, "containerfs."))
		case s.place() < 0:
			p.fault("--%s %s: unknown signal; there are %s", flag, s, known())
		default:
			v, err := parse(s, texts[name])
			if err != nil {
				p.fault("--%s %w", flag, err)
				continue
			}
			out[s] = v
		}
	}
	return out
}

func known() string {
	var names []string
	for _, row := range signals {
		if row.signal != AllocatableMemoryAvailable {
			names = append(names, string(row.signal))
		}
	}
	return strings.Join(names, ", ")
}

// threshold parses the value of a threshold. It is nil for 0% and 100%, which turn a threshold off.
func threshold(s Signal, text string) (*Threshold, error) {
	if text == "0%" || text == "100%" {
		return nil, nil
	}
	v, err := parseValue(text)
	if err == nil && v.Amount != nil && v.Amount.IsZero() {
		err = errors.New("give an amount above 0, or 0% for no threshold")
	}
	if err != nil {
		return nil, fmt.Errorf("%s<%s: %w", s, text, err)
	}
	return &Threshold{Signal: s, Value: v}, nil
}

func parseValue(text string) (Value, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(n >= 0 && n <= 100) {
			return Value{}, errors.New("give 0% to 100%")
		}
		return Value{Fraction: n / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return Value{}, errors.New("give an amount such as 100Mi, or a share such as 10%")
	}
	return Value{Amount: &q}, nil
}

// Reserved returns what the hard thresholds keep from pods, of resources with these capacities: a pod that used it would be
// evicted at once.
func (c Config) Reserved(capacity v1.ResourceList) v1.ResourceList {
	out := v1.ResourceList{}
	for _, t := range c.Thresholds {
		if !t.Soft && (t.Signal == MemoryAvailable || t.Signal == NodeFsAvailable) {
			total := capacity[t.Signal.resource()]
			out[t.Signal.resource()] = t.Value.of(total.Value())
		}
	}
	return out
}
