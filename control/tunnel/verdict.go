package tunnel

import "time"

// verdict is what is known of the direct way to something. The zero value: nothing.
type verdict struct {
	proven bool      // who answers there is who was meant
	until  time.Time // not tried before
	wait   time.Duration
}

// maxVerdicts bounds what is remembered; the oldest answers go first.
const maxVerdicts = 4096

// barred says whether the direct way is not to be tried now.
func (v verdict) barred(now time.Time) bool { return now.Before(v.until) }

// failed is the verdict after the direct way was no way, once more.
func (v verdict) failed(now time.Time, memory time.Duration) verdict {
	wait := memory
	if v.wait > 0 {
		wait = min(2*v.wait, 10*memory)
	}
	return verdict{until: now.Add(wait), wait: wait}
}

func (t *Tunnel) verdict(key string) verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.verdicts[key]
}

// good notes that the direct way is one; proven, that who answers there was looked at.
func (t *Tunnel) good(key string, proven bool) {
	t.mu.Lock()
	before := t.verdicts[key]
	if proven = proven || before.proven; proven {
		t.makeRoom()
		t.verdicts[key] = verdict{proven: true}
	} else {
		delete(t.verdicts, key)
	}
	t.mu.Unlock()
	if before.wait > 0 {
		t.cfg.Logger.Info("is reached directly again", "what", key)
	}
}

// bad notes that it was none, and that another is.
func (t *Tunnel) bad(key string, reason error) {
	t.mu.Lock()
	before := t.verdicts[key]
	t.makeRoom()
	after := before.failed(time.Now(), t.cfg.Memory)
	t.verdicts[key] = after
	t.mu.Unlock()
	if before.wait == 0 {
		t.cfg.Logger.Info("is not reached directly, but by a connection that a node has opened", "what", key, "reason", reason, "for", after.wait)
	}
}

// makeRoom forgets verdicts when there are too many. t.mu is held.
func (t *Tunnel) makeRoom() {
	if len(t.verdicts) < maxVerdicts {
		return
	}
	now := time.Now()
	for key, v := range t.verdicts {
		if !v.barred(now) || len(t.verdicts) >= maxVerdicts {
			delete(t.verdicts, key)
		}
	}
}
