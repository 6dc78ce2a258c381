package overlay

import (
	"log/slog"
	"time"
)

const (
	// repairsFree is how often within repairsWithin what somebody else did to our nftables is put right at once.
	repairsFree   = 6
	repairsWithin = time.Minute
	repairsApart  = 20 * time.Second
)

// patience keeps two programs that both want our table from fighting over it for ever at full speed.
type patience struct {
	repairs []time.Time
	told    bool
}

// later takes the repair out of what is to do if there were many lately, and says when to come back to it.
func (p *patience) later(t *todo, now time.Time, log *slog.Logger) time.Duration {
	if t.what&rulesTouched == 0 || t.by == "" {
		return 0
	}
	for len(p.repairs) > 0 && now.Sub(p.repairs[0]) > repairsWithin {
		p.repairs = p.repairs[1:]
	}
	if len(p.repairs) == 0 {
		p.told = false
	}
	often := p.told || len(p.repairs) >= repairsFree
	if wait := repairsApart - p.sinceLast(now); often && wait > 0 {
		if !p.told {
			log.Error("another program changes our nftables again and again: end it, or have it use tables of its own; until then they are put right only now and then",
				"program", t.by, "every", repairsApart)
			p.told = true
		}
		t.what &^= rulesTouched
		return wait
	}
	log.Info("our nftables were changed by another program: put right", "program", t.by)
	p.repairs = append(p.repairs, now)
	return 0
}

func (p *patience) sinceLast(now time.Time) time.Duration {
	if len(p.repairs) == 0 {
		return repairsWithin
	}
	return now.Sub(p.repairs[len(p.repairs)-1])
}
