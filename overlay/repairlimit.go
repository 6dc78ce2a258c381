package overlay

import (
	"log/slog"
	"time"
)

const (
	// A change by another program is repaired at once up to repairsFree times within repairsWithin. Further repairs are at
	// least repairsGap apart.
	repairsFree   = 6
	repairsWithin = time.Minute
	repairsGap    = 20 * time.Second
)

// repairLimit limits the rate at which this program and another one can undo each other's changes of the table.
type repairLimit struct {
	repairs []time.Time
	logged  bool
}

// postpone removes the repair from the work if there were many repairs lately. It returns when to try it again; 0 if the
// repair was not postponed.
func (p *repairLimit) postpone(t *work, now time.Time, log *slog.Logger) time.Duration {
	if t.dirty&rulesDirty == 0 || t.program == "" {
		return 0
	}
	for len(p.repairs) > 0 && now.Sub(p.repairs[0]) > repairsWithin {
		p.repairs = p.repairs[1:]
	}
	if len(p.repairs) == 0 {
		p.logged = false
	}
	often := p.logged || len(p.repairs) >= repairsFree
	if wait := repairsGap - p.sinceLast(now); often && wait > 0 {
		if !p.logged {
			log.Error("another program keeps changing Balsa's nftables tables: stop it, or make it use other tables; until then they are repaired only from time to time",
				"program", t.program, "every", repairsGap)
			p.logged = true
		}
		t.dirty &^= rulesDirty
		return wait
	}
	log.Info("another program changed Balsa's nftables tables; they are repaired", "program", t.program)
	p.repairs = append(p.repairs, now)
	return 0
}

func (p *repairLimit) sinceLast(now time.Time) time.Duration {
	if len(p.repairs) == 0 {
		return repairsWithin
	}
	return now.Sub(p.repairs[len(p.repairs)-1])
}
