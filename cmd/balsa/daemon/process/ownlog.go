package process

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	// followPause is how long a reader that follows the log's file waits for more of it.
	followPause = 500 * time.Millisecond
	// maxLogLine bounds a line that is read, in bytes; longer ones are cut.
	maxLogLine = 64 << 10
	// journalTime is how journalctl reads a time, in UTC.
	journalTime = "2006-01-02 15:04:05 UTC"
)

var errNoLog = errors.New("this process's log goes to a terminal, a pipe or nowhere, where it cannot be read again; `balsa up` writes it to a file, systemd to the journal")

// logQuery is which part of the log is asked for.
type logQuery struct {
	since  time.Time
	follow bool
}

// serveLog shows the log of this process: of the file or the journal that standard error is.
func serveLog(w http.ResponseWriter, r *http.Request) {
	q := logQuery{follow: r.FormValue("follow") == "true"}
	if text := r.FormValue("since"); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil {
			http.Error(w, fmt.Sprintf("since: %v", err), http.StatusBadRequest)
			return
		}
		q.since = at
	}
	control := http.NewResponseController(w)
	_ = control.SetWriteDeadline(time.Time{}) // a log may be long, and a client may follow it
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	err := writeLog(r.Context(), flusher{w, control}, q)
	if errors.Is(err, errNoLog) {
		http.Error(w, err.Error(), http.StatusNotFound)
	}
}

// flusher sends each write on at once.
type flusher struct {
	io.Writer
	control *http.ResponseController
}

// Write implements io.Writer.
func (f flusher) Write(p []byte) (int, error) {
	n, err := f.Writer.Write(p)
	_ = f.control.Flush()
	return n, err
}

func writeLog(ctx context.Context, w io.Writer, q logQuery) error {
	var st syscall.Stat_t
	if err := syscall.Fstat(int(os.Stderr.Fd()), &st); err != nil {
		return errNoLog
	}
	if journal := fmt.Sprintf("%d:%d", st.Dev, st.Ino); journal == os.Getenv("JOURNAL_STREAM") {
		return writeJournal(ctx, w, q)
	}
	name, err := os.Readlink("/proc/self/fd/2")
	if err != nil || st.Mode&syscall.S_IFMT != syscall.S_IFREG {
		return errNoLog
	}
	f, err := os.Open(name)
	if err != nil {
		return errNoLog // removed, or renamed by a rotation
	}
	defer f.Close()
	return copyLog(ctx, w, f, q)
}

// writeJournal shows this unit's lines since it was started.
func writeJournal(ctx context.Context, w io.Writer, q logQuery) error {
	id := os.Getenv("INVOCATION_ID")
	if id == "" {
		return errNoLog
	}
	args := []string{"--quiet", "--no-pager", "--output=cat", "_SYSTEMD_INVOCATION_ID=" + id}
	if !q.since.IsZero() {
		args = append(args, "--since="+q.since.UTC().Format(journalTime))
	}
	if q.follow {
		args = append(args, "--follow", "--no-tail")
	}
	cmd := exec.CommandContext(ctx, "journalctl", args...)
	cmd.Stdout, cmd.Stderr = w, w
	return cmd.Run()
}

// copyLog copies the lines of a log since q.since, and with q.follow those that are added until ctx ends. It holds one line in
// memory. A line without a time, such as one of a stack, belongs to the line before.
func copyLog(ctx context.Context, w io.Writer, log io.Reader, q logQuery) error {
	lines, shown := bufio.NewReaderSize(log, maxLogLine), q.since.IsZero()
	begins := true // the next piece is the beginning of a line
	for ctx.Err() == nil {
		piece, err := lines.ReadSlice('\n')
		if begins && !shown && len(piece) > 0 {
			shown = !timeOf(piece).Before(q.since)
		}
		if shown && len(piece) > 0 {
			if _, err := w.Write(piece); err != nil {
				return err
			}
		}
		if len(piece) > 0 {
			begins = bytes.HasSuffix(piece, []byte("\n"))
		}
		switch {
		case err == nil || errors.Is(err, bufio.ErrBufferFull):
		case !errors.Is(err, io.EOF) || !q.follow:
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		default:
			pause := time.NewTimer(followPause)
			select {
			case <-ctx.Done():
				pause.Stop()
			case <-pause.C:
			}
		}
	}
	return nil
}

// timeOf returns the time of a line of the log, zero when it has none.
func timeOf(line []byte) time.Time {
	text, ok := strings.CutPrefix(string(line[:min(len(line), 64)]), "time=")
	if !ok {
		return time.Time{}
	}
	text, _, _ = strings.Cut(text, " ")
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return at
}
