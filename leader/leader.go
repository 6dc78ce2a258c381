package leader

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/balsahq/balsa/fault"
)

const (
	// campaignRetry and campaignRetryMost bound the pause after a failed campaign: short at first, because an election takes
	// a fraction of a second, and doubling while there is no quorum.
	campaignRetry     = 50 * time.Millisecond
	campaignRetryMost = time.Second
	// termRetryMost bounds the pause after terms that failed soon after their start, because each term reads all objects.
	termRetryMost = 30 * time.Second
	resignTimeout = 5 * time.Second
	// lostTimeout bounds resigning a term that is over already: it only tidies up, and the next campaign waits for it.
	lostTimeout = 100 * time.Millisecond
)

// errTerm is the error of a term that failed at once after it was won.
var errTerm = errors.New("the term failed")

// Run campaigns, leads while the term lasts, and campaigns again, until ctx ends. It returns an error only for a
// configuration that cannot work; losing a term, or failing to start one, is logged and tried again.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	registerMetrics()
	wait := campaignRetry
	for ctx.Err() == nil {
		err := fault.Contain("leader", func() error { return once(ctx, cfg) })
		if err == nil || ctx.Err() != nil {
			wait = campaignRetry
			continue
		}
		if wait == campaignRetry { // one log line per series of failures
			cfg.Logger.Warn("this server cannot lead; it campaigns again", "err", err)
		}
		pause(ctx, wait)
		most := campaignRetryMost
		if errors.Is(err, errTerm) {
			most = termRetryMost
		}
		wait = min(2*wait, most)
	}
	return nil
}

// once campaigns and, if it wins, leads until the end of the term.
func once(ctx context.Context, cfg Config) error {
	term, err := cfg.Elector.Campaign(ctx)
	if err != nil {
		return fmt.Errorf("campaigning: %w", err)
	}
	log := cfg.Logger.With("epoch", term.Epoch)
	log.Info("this server leads: its controllers and scheduler start")
	showLeading(1)
	defer showLeading(0)
	began := time.Now()
	err = lead(ctx, cfg, term)
	log.Info("this server no longer leads: its controllers and scheduler have stopped")
	if err != nil && time.Since(began) < termRetryMost {
		err = fmt.Errorf("%w: %w", errTerm, err)
	}

	// The process may be stopping, so resigning does not end with ctx and has a timeout of its own.
	timeout := resignTimeout
	select {
	case <-term.Lost:
		timeout = lostTimeout
	default:
	}
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	if e := term.Resign(resigning); e != nil && err == nil {
		log.Debug("resigning failed; the lease will run out", "err", e)
	}
	return err
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
