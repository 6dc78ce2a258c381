package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"
)

// Snapshots configures the snapshots that the leader saves on a schedule.
type Snapshots struct {
	Every time.Duration // 0: never
	Keep  int
	Dir   string // empty: snapshots/ in the data directory
}

func defaultSnapshots() Snapshots {
	return Snapshots{Every: 12 * time.Hour, Keep: 5}
}

// validate reports every wrong setting at once.
func (s *Snapshots) validate() error {
	var faults []error
	if s.Every != 0 && s.Every < time.Minute {
		faults = append(faults, fmt.Errorf("--snapshot-schedule %v: give 0, or a minute or more, such as 12h", s.Every))
	}
	if s.Keep < 1 {
		faults = append(faults, fmt.Errorf("--snapshot-retention %d: give 1 or more", s.Keep))
	}
	if s.Dir != "" && !filepath.IsAbs(s.Dir) {
		faults = append(faults, fmt.Errorf("--snapshot-dir %q: give an absolute path", s.Dir))
	}
	return errors.Join(faults...)
}

// SnapshotDir is where the snapshots of the schedule are kept.
func (c *Server) SnapshotDir() string {
	if c.Snapshots.Dir != "" {
		return c.Snapshots.Dir
	}
	return c.DefaultSnapshotDir()
}

// DefaultSnapshotDir is where snapshots are kept unless the server is told another directory.
func (p *Paths) DefaultSnapshotDir() string { return filepath.Join(p.DataDir, "snapshots") }
