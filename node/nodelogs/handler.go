package nodelogs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// mostQueries run at the same time: each is a process or a file read by the agent.
	mostQueries = 4
	// patience is how long a query may take, and streamTime how long a file may take to be sent.
	patience   = 30 * time.Second
	streamTime = 10 * time.Minute
)

// Config is what a Handler needs.
type Config struct {
	// Dir is the log directory, such as /var/log.
	Dir string
	// Query allows ?query=.
	Query bool
	// Journal returns the command that reads the journal with arguments; nil is journalctl.
	Journal func(ctx context.Context, args ...string) *exec.Cmd
}

// Handler serves logs at paths below the log directory.
type Handler struct {
	cfg   Config
	turns chan struct{}
}

// New returns a Handler; it expects its paths without /logs.
func New(cfg Config) *Handler {
	if cfg.Journal == nil {
		cfg.Journal = func(ctx context.Context, args ...string) *exec.Cmd {
			return exec.CommandContext(ctx, "journalctl", args...)
		}
	}
	return &Handler{cfg: cfg, turns: make(chan struct{}, mostQueries)}
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.Query())
	switch {
	case err != nil:
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case q != nil && !h.cfg.Query:
		http.Error(w, "queries of logs are disabled on this node; it enables them with --enable-system-log-query", http.StatusNotAcceptable)
		return
	case q != nil && strings.Trim(r.URL.Path, "/") != "":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return
	}
	root, err := os.OpenRoot(h.cfg.Dir)
	if err != nil {
		http.Error(w, "the log directory cannot be opened", http.StatusNotFound)
		return
	}
	defer root.Close()
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(streamTime))
	if q != nil && q.file == "" {
		h.services(w, r, q, root)
		return
	}
	if q != nil {
		r = r.Clone(r.Context())
		r.URL.Path = q.file
	}
	http.FileServerFS(onlyFiles{root}).ServeHTTP(w, r)
}

// onlyFiles shows the regular files and directories of a directory.
type onlyFiles struct{ root *os.Root }

// Open implements fs.FS. It does not wait for the writer of a pipe.
func (o onlyFiles) Open(name string) (fs.File, error) {
	f, err := o.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, outside(name, err)
	}
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() && !st.IsDir() {
		f.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return f, nil
}

// outside turns the error for a link that leads out into the one for a file that is not there.
func outside(name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return err
	}
	return &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// services writes the logs of services, from the journal where it has them, else from their files.
func (h *Handler) services(w http.ResponseWriter, r *http.Request, q *query, root *os.Root) {
	select {
	case h.turns <- struct{}{}:
		defer func() { <-h.turns }()
	default:
		http.Error(w, fmt.Sprintf("%d queries of logs run on this node: try again later", mostQueries), http.StatusTooManyRequests)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	units := h.units(ctx)
	var inJournal, inFiles []string
	for _, s := range q.services {
		if units[s] || units[s+".service"] {
			inJournal = append(inJournal, s)
		} else {
			inFiles = append(inFiles, s)
		}
	}
	if len(inJournal) > 0 {
		cmd := h.cfg.Journal(ctx, q.journalArgs(inJournal)...)
		cmd.Stdout, cmd.Stderr = w, w
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
			fmt.Fprintf(w, "\nerror: journal output not available\n")
		}
	}
	if len(inFiles) > 0 && q.options != (options{}) {
		fmt.Fprintf(w, "\noptions present and query resolved to log files for %v\ntry without specifying options\n", inFiles)
		return
	}
	for _, s := range inFiles {
		copyFile(ctx, w, onlyFiles{root}, s)
	}
}

// units are the names that the journal has entries of; none where there is no journal.
func (h *Handler) units(ctx context.Context) map[string]bool {
	out, err := h.cfg.Journal(ctx, "--field", "_SYSTEMD_UNIT").Output()
	units := map[string]bool{}
	if err != nil {
		return units
	}
	for _, line := range strings.Fields(string(out)) {
		units[line] = true
	}
	return units
}

// copyFile writes the file that a service's log is by custom.
func copyFile(ctx context.Context, w io.Writer, files fs.FS, service string) {
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		f, err := files.Open(name)
		if err != nil {
			continue
		}
		st, err := f.Stat()
		if err != nil || st.IsDir() {
			f.Close()
			continue
		}
		_, err = io.Copy(w, &untilDone{ctx, f})
		f.Close()
		if err != nil {
			fmt.Fprintf(w, "\nerror getting log for %s: %v\n", service, err)
		}
		return
	}
	fmt.Fprintf(w, "\nlog not found for %s\n", service)
}

// untilDone reads until its context ends.
type untilDone struct {
	ctx context.Context
	io.Reader
}

// Read implements io.Reader.
func (u *untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.Reader.Read(p)
}
