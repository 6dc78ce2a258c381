package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/balsahq/balsa/control/cluster/archive"
)

// Archiver makes archives and judges them. *Service implements it.
type Archiver interface {
	WriteArchive(ctx context.Context, w io.Writer) (archive.Trailer, error)
	VerifyArchive(r io.Reader) (archive.Header, archive.Trailer, error)
}

// Config says how often snapshots are saved, where, and how many are kept.
type Config struct {
	Archiver Archiver
	// Dir takes the files; made with mode 0700 when absent.
	Dir string
	// Every is the pause between two snapshots, Keep how many are kept here.
	Every time.Duration
	Keep  int
	// Leading and LeaderChanged say which server does it: the one that leads.
	Leading       func() bool
	LeaderChanged func() <-chan struct{}
	Logger        *slog.Logger
}

// Validate reports every fault at once.
func (c *Config) Validate() error {
	var errs []error
	if c.Archiver == nil || c.Leading == nil || c.LeaderChanged == nil || c.Dir == "" {
		errs = append(errs, errors.New("snapshots: Archiver, Dir, Leading and LeaderChanged must be set"))
	}
	if c.Every < time.Minute {
		errs = append(errs, fmt.Errorf("snapshots every %v: give a minute or more", c.Every))
	}
	if c.Keep < 1 {
		errs = append(errs, fmt.Errorf("%d snapshots kept: give 1 or more", c.Keep))
	}
	return errors.Join(errs...)
}

const (
	firstSnapshot  = 10 * time.Minute
	notLeadingLook = 30 * time.Second // leading may begin without a change of leader
	snapshotRetry  = 5 * time.Minute
)

// Run saves snapshots while this server leads, until ctx ends. A failure is logged and tried again. A file gets its final
// name only after it was written completely and read back.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	began, failed := time.Now(), time.Time{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		changed := cfg.LeaderChanged()
		wait := notLeadingLook
		if cfg.Leading() {
			wait = time.Until(nextSnapshot(newestTime(cfg.Dir), began, failed, cfg.Every))
			if wait <= 0 && ctx.Err() == nil {
				failed = cfg.saveOnce(ctx)
				continue
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-changed:
		}
	}
}

// nextSnapshot is when the next snapshot is: Every after the newest, soon when there is none, a while after a failure.
func nextSnapshot(last, began, failed time.Time, every time.Duration) time.Time {
	next := last.Add(every)
	if last.IsZero() {
		next = began.Add(min(every, firstSnapshot))
	}
	if !failed.IsZero() && next.Before(failed.Add(min(every, snapshotRetry))) {
		next = failed.Add(min(every, snapshotRetry))
	}
	return next
}

// saveOnce saves one snapshot and prunes; it logs what goes wrong, and returns when it failed to save, if it did.
func (c *Config) saveOnce(ctx context.Context) (failed time.Time) {
	start := time.Now()
	path, trailer, err := Save(ctx, c.Archiver, c.Dir)
	if err != nil {
		if ctx.Err() == nil {
			c.Logger.Error("a scheduled snapshot could not be saved; it is tried again", "dir", c.Dir, "err", err)
		}
		return time.Now()
	}
	c.Logger.Info("a snapshot was saved", "file", path, "revision", trailer.Revision, "keys", trailer.Keys, "bytes", trailer.Bytes, "took", time.Since(start).Round(time.Millisecond))
	if err := removeOld(c.Dir, c.Keep); err != nil {
		c.Logger.Warn("old snapshots could not be removed", "dir", c.Dir, "err", err)
	}
	return time.Time{}
}
