package tunnel

import (
	"time"

	"k8s.io/utils/lru"
)

// verdict is the result of earlier direct connections to a target. The zero value means that there were none.
type verdict struct {
	proven bool      // the identity of the machine there was checked
	until  time.Time // direct connections are not tried before this time
	wait   time.Duration
}

// maxVerdicts bounds the verdicts that a Tunnel remembers. Past it the least recently used verdict goes, whether it was
// read or written last; an eviction costs the same however many there are.
const maxVerdicts = 4096

// verdicts are the verdicts by target. Safe for concurrent use.
type verdicts struct{ cache *lru.Cache } // of verdict, by target

func newVerdicts(size int) verdicts { return verdicts{lru.New(size)} }

func (s verdicts) get(key string) verdict {
	if v, ok := s.cache.Get(key); ok {
		return v.(verdict)
	}
	return verdict{}
}

func (s verdicts) set(key string, v verdict) { s.cache.Add(key, v) }

func (s verdicts) forget(key string) { s.cache.Remove(key) }

// barred reports whether direct connections are not tried now.
func (v verdict) barred(now time.Time) bool { return now.Before(v.until) }

// failed returns the verdict after one more failed direct connection.
func (v verdict) failed(now time.Time, memory time.Duration) verdict {
	wait := memory
	if v.wait > 0 {
		wait = min(2*v.wait, 10*memory)
	}
	return verdict{until: now.Add(wait), wait: wait}
}

func (t *Tunnel) verdict(key string) verdict { return t.verdicts.get(key) }

// good records that a direct connection worked; proven means that the identity of the machine was checked.
func (t *Tunnel) good(key string, proven bool) {
	if before := t.noteGood(key, proven); before.wait > 0 {
		t.cfg.Logger.Info("a target is reached directly again, without a node's connection", "target", key)
	}
}

func (t *Tunnel) noteGood(key string, proven bool) (before verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before = t.verdicts.get(key)
	if proven || before.proven {
		t.verdicts.set(key, verdict{proven: true})
	} else {
		t.verdicts.forget(key)
	}
	return before
}

// bad records that a direct connection failed and one through a node worked.
func (t *Tunnel) bad(key string, reason error) {
	if before, after := t.noteBad(key); before.wait == 0 {
		t.cfg.Logger.Info("a target cannot be reached directly; it is reached through a connection that a node has opened", "target", key, "err", reason, "for", after.wait)
	}
}

func (t *Tunnel) noteBad(key string) (before, after verdict) {
	t.mu.Lock()
	defer t.mu.Unlock()
	before = t.verdicts.get(key)
	after = before.failed(time.Now(), t.cfg.Memory)
	t.verdicts.set(key, after)
	return before, after
}
