package cluster

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/control/cluster/archive"
)

// Archiver makes archives and judges them. *Service implements it.
type Archiver interface {
	WriteArchive(ctx context.Context, w io.Writer) (archive.Trailer, error)
	VerifyArchive(r io.Reader) (archive.Header, archive.Trailer, error)
}

// ScheduleConfig says how often snapshots are saved, where, and how many are kept.
type ScheduleConfig struct {
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
func (c *ScheduleConfig) Validate() error {
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
	archivePrefix, archiveSuffix = "balsa-", ".snapshot"
	archiveTime                  = "20060102T150405Z"
	unfinishedPrefix             = ".balsa-" // a file being written
	firstSnapshot                = 10 * time.Minute
	notLeadingLook               = 30 * time.Second // leading may begin without a change of leader
	snapshotRetry                = 5 * time.Minute
)

// RunSchedule saves snapshots while this server leads, until ctx ends. What goes wrong is logged and tried again; a file
// that has its name is whole and was read back.
func RunSchedule(ctx context.Context, cfg ScheduleConfig) error {
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
			wait = time.Until(due(newest(cfg.Dir), began, failed, cfg.Every))
			if wait <= 0 && ctx.Err() == nil {
				failed = cfg.once(ctx)
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

// due is when the next snapshot is: Every after the newest, soon when there is none, a while after a failure.
func due(last, began, failed time.Time, every time.Duration) time.Time {
	next := last.Add(every)
	if last.IsZero() {
		next = began.Add(min(every, firstSnapshot))
	}
	if !failed.IsZero() && next.Before(failed.Add(min(every, snapshotRetry))) {
		next = failed.Add(min(every, snapshotRetry))
	}
	return next
}

// once saves one snapshot and prunes; it logs what goes wrong, and returns when it failed to save, if it did.
func (c *ScheduleConfig) once(ctx context.Context) (failed time.Time) {
	start := time.Now()
	path, trailer, err := SaveArchive(ctx, c.Archiver, c.Dir)
	if err != nil {
		if ctx.Err() == nil {
			c.Logger.Error("a scheduled snapshot could not be saved; it is tried again", "dir", c.Dir, "err", err)
		}
		return time.Now()
	}
	c.Logger.Info("a snapshot was saved", "file", path, "revision", trailer.Revision, "keys", trailer.Keys, "bytes", trailer.Bytes, "took", time.Since(start).Round(time.Millisecond))
	if err := prune(c.Dir, c.Keep); err != nil {
		c.Logger.Warn("old snapshots could not be removed", "dir", c.Dir, "err", err)
	}
	return time.Time{}
}

// SaveArchive writes an archive into dir under a name of its time and revision, reads it back, and only then gives it
// that name. On failure, a full disk too, nothing is left.
func SaveArchive(ctx context.Context, a Archiver, dir string) (path string, trailer archive.Trailer, err error) {
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return "", trailer, err
	}
	if err = sweep(dir); err != nil {
		return "", trailer, err
	}
	file, err := os.CreateTemp(dir, unfinishedPrefix+"*")
	if err != nil {
		return "", trailer, err
	}
	defer func() {
		file.Close()
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	out := bufio.NewWriterSize(file, 1<<20)
	made, err := a.WriteArchive(ctx, out)
	if err == nil {
		err = out.Flush()
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		return "", trailer, err
	}
	if _, err = file.Seek(0, io.SeekStart); err != nil {
		return "", trailer, err
	}
	if _, trailer, err = a.VerifyArchive(file); err != nil {
		return "", trailer, fmt.Errorf("what was written does not read back: %w", err)
	}
	if trailer.Revision != made.Revision {
		return "", trailer, fmt.Errorf("revision %d was written and %d read back", made.Revision, trailer.Revision)
	}
	path = filepath.Join(dir, archiveName(time.Now(), trailer.Revision))
	if err = publish(file.Name(), path, atomicfile.SyncDir); err != nil {
		return "", trailer, err
	}
	return path, trailer, nil
}

// publish renames an archive and makes the new name last. When syncDir fails it removes the archive: a crash could take
// the name back later, and the schedule would count a snapshot that is not there.
func publish(from, to string, syncDir func(dir string) error) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(to)); err != nil {
		return errors.Join(err, os.Remove(to))
	}
	return nil
}

func archiveName(at time.Time, revision int64) string {
	return fmt.Sprintf("%s%s-r%d%s", archivePrefix, at.UTC().Format(archiveTime), revision, archiveSuffix)
}

// archiveMade is when a file was made, by its name; false when it is not one of ours.
func archiveMade(name string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(name, archivePrefix)
	rest, ok2 := strings.CutSuffix(rest, archiveSuffix)
	at, _, ok3 := strings.Cut(rest, "-r")
	made, err := time.Parse(archiveTime, at)
	return made, ok && ok2 && ok3 && err == nil
}

// archives are the names of the archives in dir, newest first.
func archives(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if _, ok := archiveMade(e.Name()); ok && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		ta, _ := archiveMade(a)
		tb, _ := archiveMade(b)
		return cmp.Or(tb.Compare(ta), strings.Compare(b, a))
	})
	return names, nil
}

func newest(dir string) time.Time {
	names, err := archives(dir)
	if err != nil || len(names) == 0 {
		return time.Time{}
	}
	at, _ := archiveMade(names[0])
	return at
}

func prune(dir string, keep int) error {
	names, err := archives(dir)
	if err != nil {
		return err
	}
	var errs []error
	for i := keep; i < len(names); i++ {
		errs = append(errs, os.Remove(filepath.Join(dir, names[i])))
	}
	return errors.Join(errs...)
}

// sweep removes what an earlier run left unfinished. One process writes into dir.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, unfinishedPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// ArchiveFile is one file of a listing.
type ArchiveFile struct {
	Path    string
	Size    int64
	Header  archive.Header
	Trailer archive.Trailer
	Err     error // the file's ends could not be read
}

// ListArchives looks at the ends of the archives in dir, newest first.
func ListArchives(dir string) ([]ArchiveFile, error) {
	names, err := archives(dir)
	if err != nil {
		return nil, err
	}
	var out []ArchiveFile
	for _, name := range names {
		out = append(out, peek(filepath.Join(dir, name)))
	}
	return out, nil
}

func peek(path string) ArchiveFile {
	out := ArchiveFile{Path: path}
	file, err := os.Open(path)
	if err != nil {
		out.Err = err
		return out
	}
	defer file.Close()
	if st, err := file.Stat(); err == nil {
		out.Size = st.Size()
	}
	out.Header, out.Trailer, out.Err = archive.Peek(file)
	return out
}
