package member

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func fiveReal(t *testing.T) []*real {
	var all []*real
	for i := 1; i <= 5; i++ {
		var seeds []string
		if i > 1 {
			seeds = []string{all[0].Addr()}
		}
		all = append(all, startReal(t, Config{Name: fmt.Sprint("s", i), Meta: serverMeta(i)}, seeds...))
	}
	eventually(t, time.Minute, "all see all", func() bool {
		return !slices.ContainsFunc(all, func(g *real) bool { return strings.Count(states(g), "alive") != 5 })
	})
	return all
}

// TestAllCoresBusyRaisesNoFalseAlarm has four times as many goroutines spin as
// there are cores, in the process of all five members. Where other processes
// had a share of the cores, an alarm says nothing of this one.
func TestAllCoresBusyRaisesNoFalseAlarm(t *testing.T) {
	all := fiveReal(t)
	for range 3 {
		before, began := cpuTime(), time.Now()
		alarms := alarmsWhileBusy(all)
		share := float64(cpuTime()-before) / float64(time.Since(began)) / float64(runtime.NumCPU())
		if len(alarms) == 0 {
			return
		}
		if share > 0.9 {
			t.Fatalf("with %.0f %% of the cores: %v", share*100, alarms)
		}
		t.Logf("with %.0f %% of the cores, the rest was others': %v", share*100, alarms)
		eventually(t, 2*time.Minute, "all see all", func() bool {
			return !slices.ContainsFunc(all, func(g *real) bool { return strings.Count(states(g), "alive") != 5 })
		})
	}
}

func alarmsWhileBusy(all []*real) (list []string) {
	const load = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), load)
	defer cancel()
	var spinners sync.WaitGroup
	for range 4 * runtime.NumCPU() {
		spinners.Go(func() {
			for n := 0; ctx.Err() == nil; {
				for range 1 << 20 {
					n++
				}
			}
		})
	}
	var alarms sync.Map
	var watchers sync.WaitGroup
	for _, g := range all {
		watchers.Go(func() {
			for ctx.Err() == nil {
				changed := g.Changed()
				for _, m := range g.Members() {
					if m.State != StateAlive {
						alarms.Store(g.cfg.Name+" thinks so of "+m.Name, m.State)
					}
				}
				select {
				case <-changed:
				case <-ctx.Done():
				}
			}
		})
	}
	spinners.Wait()
	watchers.Wait()
	alarms.Range(func(who, state any) bool {
		list = append(list, fmt.Sprintf("%v: %v", who, state))
		return true
	})
	return list
}

func cpuTime() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func TestAtRestFiveMembersCostNearlyNothing(t *testing.T) {
	fiveReal(t)
	settle := time.NewTimer(3 * time.Second)
	<-settle.C
	before := cpuTime()
	const rest = 10 * time.Second
	timer := time.NewTimer(rest)
	<-timer.C
	share := float64(cpuTime()-before) / float64(rest) / 5
	t.Logf("%.3f %% of a core per member", share*100)
	if share > 0.005 {
		t.Errorf("a member at rest uses %.2f %% of a core", share*100)
	}
}
