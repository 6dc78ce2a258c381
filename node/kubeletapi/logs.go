package kubeletapi

import (
	"bufio"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
)

// StreamIdle is how long a client may leave unread what it is sent, before its stream is cut.
const StreamIdle = 4 * time.Hour

func (s *Server) containerLogs(w http.ResponseWriter, r *http.Request) {
	ns, name, container := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("container")
	opts, err := parseLogOptions(r.URL.Query(), time.Now())
	switch {
	case errors.Is(err, errBadLogOption):
		writeError(w, http.StatusUnprocessableEntity, `{"message": "Invalid request."}`)
		return
	case err != nil:
		writeError(w, http.StatusBadRequest, `{"message": "Unable to decode query."}`)
		return
	}
	pod, ok := s.cfg.Backend.Pod(ns, name)
	if !ok {
		writeErrorf(w, http.StatusNotFound, "pod %q does not exist", name)
		return
	}
	if found, _ := containerSpec(pod, container); !found {
		writeErrorf(w, http.StatusNotFound, "container %q not found in pod %q", container, name)
		return
	}
	out := newLogWriter(w)
	err = s.copyContainerLog(r.Context(), out, pod, container, opts)
	switch {
	case err == nil, r.Context().Err() != nil:
	case out.begun:
		s.log.Info("reading a container's log failed; the client's connection is cut so that it does not take this for the end", "pod", ns+"/"+name, "container", container, "err", err)
		panic(http.ErrAbortHandler) // else the client would take this for the end of the log
	default:
		writeError(w, http.StatusBadRequest, err.Error())
	}
}

func (s *Server) copyContainerLog(ctx context.Context, out *logWriter, pod *v1.Pod, container string, opts logOptions) error {
	id, err := logContainer(pod, container, opts.previous)
	if err != nil {
		return err
	}
	status, err := s.cfg.Backend.Runtime().ContainerStatus(ctx, id, false)
	if err != nil {
		s.log.Info("the runtime gives no status of a container; its log is not served", "id", id, "err", err)
		return errors.New("unable to retrieve container logs for containerd://" + id)
	}
	return copyLog(ctx, status.GetStatus().GetLogPath(), opts, out, s.cfg.Backend.ContainerDone(id))
}

// logWriter gathers small writes and gives the client StreamIdle for each send.
type logWriter struct {
	*bufio.Writer
	w       http.ResponseWriter
	control *http.ResponseController
	begun   bool // something was sent
}

func newLogWriter(w http.ResponseWriter) *logWriter {
	l := &logWriter{w: w, control: http.NewResponseController(w)}
	l.Writer = bufio.NewWriterSize(sender{l}, logBuffer)
	return l
}

// Flush sends everything on, and the first time the header too, so that a client sees at once that it is served.
func (l *logWriter) Flush() error {
	if err := l.Writer.Flush(); err != nil {
		return err
	}
	l.begin()
	if err := l.control.Flush(); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_ = l.control.SetWriteDeadline(time.Time{}) // until there is more to send
	return nil
}

func (l *logWriter) begin() {
	if !l.begun {
		l.begun = true
		l.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	}
	_ = l.control.SetWriteDeadline(time.Now().Add(StreamIdle)) // not every ResponseWriter can
}

// sender is where the buffer of a logWriter goes.
type sender struct{ l *logWriter }

func (s sender) Write(p []byte) (int, error) {
	s.l.begin()
	return s.l.w.Write(p)
}

var errBadLogOption = errors.New("invalid log option")

// parseLogOptions reads the query of a log request, whose names are those of v1.PodLogOptions.
func parseLogOptions(q url.Values, now time.Time) (logOptions, error) {
	if tail := q.Get("tail"); tail != "" { // an older name of tailLines
		q.Set("tailLines", tail)
		if tail == "all" {
			q.Del("tailLines")
		}
	}
	p := queryParser{q: q}
	opts := logOptions{
		follow:     p.bool("follow"),
		previous:   p.bool("previous"),
		timestamps: p.bool("timestamps"),
		tail:       p.int("tailLines"),
		limit:      p.int("limitBytes"),
	}
	seconds, at := p.int("sinceSeconds"), p.time("sinceTime")
	if p.err != nil {
		return opts, p.err
	}
	if seconds != nil {
		opts.since = now.Add(-time.Duration(*seconds) * time.Second)
	} else {
		opts.since = at
	}
	switch q.Get("stream") {
	case "", v1.LogStreamAll:
	case v1.LogStreamStdout:
		opts.stream = stdoutStream
	case v1.LogStreamStderr:
		opts.stream = stderrStream
	default:
		return opts, errBadLogOption
	}
	switch {
	case opts.tail != nil && (*opts.tail < 0 || opts.stream != ""),
		opts.limit != nil && *opts.limit < 1,
		seconds != nil && (*seconds < 1 || !at.IsZero()):
		return opts, errBadLogOption
	}
	return opts, nil
}

// queryParser reads typed values from a query and keeps the first error.
type queryParser struct {
	q   url.Values
	err error
}

func (p *queryParser) keep(err error) {
	if p.err == nil {
		p.err = err
	}
}

// bool follows the API's conversion: present and neither "false" nor "0" is true.
func (p *queryParser) bool(name string) bool {
	values, ok := p.q[name]
	if !ok || len(values) == 0 {
		return false
	}
	return values[0] != "false" && values[0] != "0"
}

func (p *queryParser) int(name string) *int64 {
	text := p.q.Get(name)
	if text == "" {
		return nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		p.keep(err)
		return nil
	}
	return &n
}

func (p *queryParser) time(name string) time.Time {
	text := p.q.Get(name)
	if text == "" {
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	p.keep(err)
	return t
}
