package kubeletapi

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	logBuffer = 64 << 10
	// maxLogLine is the longest physical line that is read; runtimes split lines at 16 KiB.
	maxLogLine = 16 << 20
)

var (
	errLogLimit = errors.New("byte limit reached")
	errLogLine  = fmt.Errorf("log line is longer than %d bytes", maxLogLine)
)

// logOptions is what of a log is wanted. Nil pointers mean no bound.
type logOptions struct {
	follow     bool
	timestamps bool
	since      time.Time
	tail       *int64
	limit      *int64
	stream     string // stdoutStream, stderrStream or "" for both
	previous   bool
}

// flusher is a writer that can send on what it holds.
type flusher interface {
	io.Writer
	Flush() error
}

// logReader copies one container's log to out.
type logReader struct {
	path string // no symlink
	opts logOptions
	out  flusher
	done <-chan struct{} // closed when the container writes no more

	file     *os.File
	in       *bufio.Reader
	held     []byte // the beginning of a line whose end is not written yet
	offset   int64  // how far the file was read
	left     int64  // bytes that may still be written
	lines    int64  // whole lines that may still be written when a tail is not followed
	midLine  map[string]bool
	skipping bool // within a line longer than maxLogLine
}

// copyLog writes the wanted part of the CRI log at path to out, and with follow goes on until done is closed and the
// file is at its end, or ctx ends. A log that is rotated is read to its end before the new file is begun.
func copyLog(ctx context.Context, path string, opts logOptions, out flusher, done <-chan struct{}) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("failed to try resolving symlinks in path %q: %w", path, err)
	}
	r := &logReader{path: real, opts: opts, out: out, done: done, left: math.MaxInt64, lines: math.MaxInt64, midLine: map[string]bool{}}
	if opts.limit != nil {
		r.left = *opts.limit
	}
	if opts.tail != nil && !opts.follow {
		r.lines = *opts.tail
	}
	if err := r.open(); err != nil {
		return err
	}
	defer func() { r.file.Close() }()
	if err := r.seekTail(); err != nil {
		return err
	}
	if opts.follow {
		err = r.follow(ctx)
	} else {
		err = r.drain(ctx)
		if err == nil {
			err = r.emit(r.held)
		}
	}
	if errors.Is(err, errLogLimit) {
		err = nil
	}
	return errors.Join(err, out.Flush())
}

func (r *logReader) open() error {
	f, err := os.Open(r.path)
	if err != nil {
		return fmt.Errorf("failed to open log file %q: %w", r.path, err)
	}
	if r.file != nil {
		r.file.Close()
	}
	r.file, r.offset, r.held = f, 0, nil
	r.in = bufio.NewReaderSize(f, logBuffer)
	return nil
}

func (r *logReader) seekTail() error {
	if r.opts.tail == nil {
		return nil
	}
	st, err := r.file.Stat()
	if err != nil {
		return err
	}
	start, err := tailOffset(r.file, st.Size(), *r.opts.tail)
	if err != nil {
		return fmt.Errorf("failed to tail %d lines of log file %q: %w", *r.opts.tail, r.path, err)
	}
	r.offset = start
	_, err = r.file.Seek(start, io.SeekStart)
	return err
}

// drain writes the lines of the file until its end.
func (r *logReader) drain(ctx context.Context) error {
	for {
		if r.lines <= 0 || r.left <= 0 {
			return errLogLimit
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		part, err := r.in.ReadSlice('\n')
		r.offset += int64(len(part))
		switch {
		case err == nil:
			if err := r.lineEnd(part); err != nil {
				return err
			}
		case errors.Is(err, bufio.ErrBufferFull), errors.Is(err, io.EOF):
			r.hold(part)
			if errors.Is(err, io.EOF) {
				return nil
			}
		default:
			return fmt.Errorf("failed to read log file %q: %w", r.path, err)
		}
	}
}

// hold keeps the beginning of a line, or drops the line when it is too long.
func (r *logReader) hold(part []byte) {
	if r.skipping {
		return
	}
	if len(r.held)+len(part) > maxLogLine {
		r.held, r.skipping = nil, true
		return
	}
	r.held = append(r.held, part...)
}

func (r *logReader) lineEnd(part []byte) error {
	line := part
	if r.skipping {
		r.skipping = false
		return errLogLine
	}
	if len(r.held) > 0 {
		line = append(r.held, part...)
		r.held = nil
	}
	return r.emit(line)
}

// emit writes one line of the file as the options want it. A line that is no log line is left out.
func (r *logReader) emit(line []byte) error {
	if len(line) == 0 {
		return nil
	}
	e, err := parseEntry(line)
	if err != nil {
		return nil
	}
	begins := !r.midLine[e.stream]
	r.midLine[e.stream] = e.partial
	if !e.partial {
		r.lines--
	}
	if e.time.Before(r.opts.since) || (r.opts.stream != "" && r.opts.stream != e.stream) {
		return nil
	}
	if r.opts.timestamps && begins {
		if err := r.write(append(e.time.AppendFormat(nil, outputTime), ' ')); err != nil {
			return err
		}
	}
	return r.write(e.text)
}

func (r *logReader) write(b []byte) error {
	if int64(len(b)) > r.left {
		b = b[:r.left]
	}
	n, err := r.out.Write(b)
	r.left -= int64(n)
	if err == nil && r.left <= 0 {
		err = errLogLimit
	}
	return err
}

// follow writes what the log holds and what comes.
func (r *logReader) follow(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("failed to watch log file %q: %w", r.path, err)
	}
	defer watcher.Close()
	// The directory is watched, not the file: that tells of writes to it and of the file that takes its place.
	if err := watcher.Add(filepath.Dir(r.path)); err != nil {
		return fmt.Errorf("failed to watch directory %q: %w", filepath.Dir(r.path), err)
	}
	for finished := false; ; {
		if err := r.drainAll(ctx); err != nil {
			return err
		}
		if err := r.out.Flush(); err != nil {
			return err
		}
		if finished {
			return r.emit(r.held)
		}
		if finished, err = r.wait(ctx, watcher); err != nil {
			return err
		}
	}
}

// drainAll reads the file to its end, and a file that has taken its place.
func (r *logReader) drainAll(ctx context.Context) error {
	for {
		replaced := r.replaced() // asked before reading: what was written until then is read first
		if err := r.drain(ctx); err != nil {
			return err
		}
		switch {
		case replaced:
			if err := r.emit(r.held); err != nil {
				return err
			}
			if err := r.open(); err != nil {
				return err
			}
		case r.truncated():
			if err := r.rewind(); err != nil {
				return err
			}
		default:
			return nil
		}
	}
}

// replaced tells whether another file has the log's name.
func (r *logReader) replaced() bool {
	now, err := os.Stat(r.path)
	if err != nil {
		return false // renamed away, its successor is not there yet
	}
	mine, err := r.file.Stat()
	return err == nil && !os.SameFile(now, mine)
}

// truncated tells whether the file has become shorter than what was read of it.
func (r *logReader) truncated() bool {
	st, err := r.file.Stat()
	return err == nil && st.Size() < r.offset
}

// rewind begins again with the file.
func (r *logReader) rewind() error {
	if _, err := r.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	r.offset, r.held = 0, nil
	r.in.Reset(r.file)
	return nil
}

// wait returns when there may be more to read; true when nothing more will come.
func (r *logReader) wait(ctx context.Context, watcher *fsnotify.Watcher) (finished bool, err error) {
	for {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-r.done:
			return true, nil
		case e, ok := <-watcher.Events:
			if !ok {
				return true, nil
			}
			if e.Name == r.path {
				return false, nil
			}
		case err, ok := <-watcher.Errors:
			if ok && errors.Is(err, fsnotify.ErrEventOverflow) {
				return false, nil
			}
			return true, err
		}
	}
}
