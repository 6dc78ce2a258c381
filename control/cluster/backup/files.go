package backup

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/control/cluster/archive"
)

const (
	archivePrefix, archiveSuffix = "balsa-", ".snapshot"
	archiveTime                  = "20060102T150405Z"
	unfinishedPrefix             = ".balsa-" // a file being written
)

// Save writes an archive into dir under a name of its time and revision, reads it back, and only then gives it
// that name. On failure, a full disk too, nothing is left.
func Save(ctx context.Context, a Archiver, dir string) (path string, trailer archive.Trailer, err error) {
	if err = os.MkdirAll(dir, 0o700); err != nil {
		return "", trailer, err
	}
	if err = removeUnfinished(dir); err != nil {
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
	if err = renameDurably(file.Name(), path, atomicfile.SyncDir); err != nil {
		return "", trailer, err
	}
	return path, trailer, nil
}

// renameDurably renames an archive and makes the new name last. When syncDir fails it removes the archive: a crash could take
// the name back later, and the schedule would count a snapshot that is not there.
func renameDurably(from, to string, syncDir func(dir string) error) error {
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

// archiveMade returns the time in the name of a scheduled snapshot; false for any other file.
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

func newestTime(dir string) time.Time {
	names, err := archives(dir)
	if err != nil || len(names) == 0 {
		return time.Time{}
	}
	at, _ := archiveMade(names[0])
	return at
}

func removeOld(dir string, keep int) error {
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

// removeUnfinished removes what an earlier run left unfinished. One process writes into dir.
func removeUnfinished(dir string) error {
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

// File is one file of a listing.
type File struct {
	Path    string
	Size    int64
	Header  archive.Header
	Trailer archive.Trailer
	Err     error // the file's ends could not be read
}

// List looks at the ends of the archives in dir, newest first.
func List(dir string) ([]File, error) {
	names, err := archives(dir)
	if err != nil {
		return nil, err
	}
	var out []File
	for _, name := range names {
		out = append(out, readEnds(filepath.Join(dir, name)))
	}
	return out, nil
}

func readEnds(path string) File {
	out := File{Path: path}
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
