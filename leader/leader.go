package leader

import (
	"context"
	"fmt"
	"time"
)

const (
	campaignRetry = time.Second
	resignTimeout = 5 * time.Second
)

// Run campaigns, leads while the term lasts, and campaigns again, until ctx ends. It returns an error only for a
// configuration that cannot work; losing a term, or failing to start one, is logged and tried again.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := once(ctx, cfg); err != nil && ctx.Err() == nil {
			cfg.Logger.Error("leadership failed, trying again", "error", err)
			pause(ctx, campaignRetry)
		}
	}
	return nil
}

// once is one campaign and, when it is won, one term to its end.
func once(ctx context.Context, cfg Config) error {
	term, err := cfg.Elector.Campaign(ctx)
	if err != nil {
		return fmt.Errorf("campaigning: %w", err)
	}
	log := cfg.Logger.With("epoch", term.Epoch)
	log.Info("leading")
	err = lead(ctx, cfg, term)
	log.Info("no longer leading")

	// The process may be on its way out: resigning gets a time of its own.
	resigning, cancel := context.WithTimeout(context.WithoutCancel(ctx), resignTimeout)
	defer cancel()
	if e := term.Resign(resigning); e != nil && err == nil {
		log.Debug("resigning failed; the lease will run out", "error", e)
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
