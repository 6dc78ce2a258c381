package kubeletapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"
)

// sink collects what is written; flush is told to whoever waits.
type sink struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *sink) Flush() error { return nil }

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func stamp(second int) string {
	return time.Date(2026, 1, 2, 3, 4, second, 5000, time.UTC).Format(time.RFC3339Nano)
}

// line is one line of a CRI log.
func line(second int, stream, tag, text string) string {
	return stamp(second) + " " + stream + " " + tag + " " + text + "\n"
}

var never = make(chan struct{})

func writeLog(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestLogOptions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	writeLog(t, path, line(1, "stdout", "F", "one")+
		line(2, "stderr", "F", "two")+
		"garbage\n"+
		line(3, "stdout", "P", "three,")+line(3, "stdout", "P:x", "three,")+line(4, "stdout", "F", "end")+
		line(5, "stdout", "F", "")+
		line(6, "stdout", "F", "six"))
	cases := []struct {
		name string
		opts logOptions
		want string
	}{
		{"all", logOptions{}, "one\ntwo\nthree,three,end\n\nsix\n"},
		{"stderr only", logOptions{stream: stderrStream}, "two\n"},
		{"tail 0", logOptions{tail: ptr.To[int64](0)}, ""},
		{"tail 1", logOptions{tail: ptr.To[int64](1)}, "six\n"},
		{"tail counts a split line once", logOptions{tail: ptr.To[int64](3)}, "three,three,end\n\nsix\n"},
		{"tail of more than there is", logOptions{tail: ptr.To[int64](99)}, "one\ntwo\nthree,three,end\n\nsix\n"},
		{"bytes", logOptions{limit: ptr.To[int64](9)}, "one\ntwo\nt"},
		{"since", logOptions{since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, "\nsix\n"},
		{"timestamps stand before whole lines", logOptions{timestamps: true, tail: ptr.To[int64](3)},
			"2026-01-02T03:04:03.000005000Z three,three,end\n2026-01-02T03:04:05.000005000Z \n2026-01-02T03:04:06.000005000Z six\n"},
	}
	for _, c := range cases {
		out := &sink{}
		if err := copyLog(t.Context(), path, c.opts, out, nil); err != nil || out.String() != c.want {
			t.Errorf("%s: %q %v, want %q", c.name, out, err, c.want)
		}
	}
}

func TestTailOfLogsLargerThanABlock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	var text strings.Builder
	for i := range 5000 {
		text.WriteString(line(i%60, "stdout", "F", fmt.Sprintf("%d %s", i, strings.Repeat("x", i%100))))
	}
	text.WriteString(line(1, "stdout", "P", strings.Repeat("y", 3*tailBlock)))
	text.WriteString(line(1, "stdout", "F", "z"))
	writeLog(t, path, text.String())
	out := &sink{}
	if err := copyLog(t.Context(), path, logOptions{tail: ptr.To[int64](2001)}, out, nil); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n"); n != 2001 || !strings.HasPrefix(out.String(), "3000 ") || !strings.HasSuffix(out.String(), "yz\n") {
		t.Fatalf("%d lines, begins %.20q", n, out)
	}
}

// following follows the log at path in the background; wait waits for its end.
func following(t *testing.T, path string, opts logOptions, done <-chan struct{}) (out *sink, cancel func(), wait func() error) {
	t.Helper()
	opts.follow = true
	ctx, stop := context.WithCancel(t.Context())
	t.Cleanup(stop)
	out, ended := &sink{}, make(chan error, 1)
	go func() { ended <- copyLog(ctx, path, opts, out, done) }()
	return out, stop, func() error {
		select {
		case err := <-ended:
			return err
		case <-time.After(time.Minute):
			t.Fatal("following did not end")
			return nil
		}
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within 10 s: %s", what)
		case <-tick.C:
		}
	}
}

func TestFollowGoesOnOverRotationUntilTheContainerIsGone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	writeLog(t, path, line(1, "stdout", "F", "a"))
	link := filepath.Join(t.TempDir(), "link") // as below /var/log/containers
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	out, _, wait := following(t, link, logOptions{}, done)
	eventually(t, "what is there", func() bool { return out.String() == "a\n" })
	whole := line(2, "stdout", "F", "b")
	writeLog(t, path, whole[:20])
	writeLog(t, path, whole[20:])
	eventually(t, "a line written in two steps", func() bool { return out.String() == "a\nb\n" })
	writeLog(t, path, line(3, "stdout", "F", "c"))
	if err := os.Rename(path, path+".20260102-030405"); err != nil {
		t.Fatal(err)
	}
	writeLog(t, path+".20260102-030405", line(4, "stdout", "F", "d"))
	writeLog(t, path, line(5, "stdout", "F", "e"))
	eventually(t, "the end of the old file and the new one", func() bool { return out.String() == "a\nb\nc\nd\ne\n" })
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	writeLog(t, path, "2026-01-02T03:04:06Z stdout F f\n") // shorter than what was there, or nobody could tell
	eventually(t, "a truncated file from its beginning", func() bool { return strings.HasSuffix(out.String(), "e\nf\n") })
	writeLog(t, path, line(7, "stdout", "F", "last"))
	close(done)
	if err := wait(); err != nil || !strings.HasSuffix(out.String(), "f\nlast\n") {
		t.Fatal(out, err)
	}
}

func TestFollowEndsWithItsClientAndItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	writeLog(t, path, line(1, "stdout", "F", "a")+line(1, "stdout", "F", "b"))
	out, cancel, wait := following(t, path, logOptions{tail: ptr.To[int64](1)}, never)
	eventually(t, "the tail", func() bool { return out.String() == "b\n" })
	cancel()
	if err := wait(); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	out, _, wait = following(t, path, logOptions{limit: ptr.To[int64](6)}, never)
	writeLog(t, path, line(1, "stdout", "F", "cdefgh"))
	if err := wait(); err != nil || out.String() != "a\nb\ncd" {
		t.Fatal(out, err)
	}
	gone := make(chan struct{})
	close(gone)
	out, _, wait = following(t, path, logOptions{}, gone)
	if err := wait(); err != nil || out.String() != "a\nb\ncdefgh\n" {
		t.Fatal(out, err)
	}
}

func TestALineWithoutEndIsNotKeptWhole(t *testing.T) {
	r := &logReader{}
	for range maxLogLine/logBuffer + 2 {
		r.hold(make([]byte, logBuffer))
	}
	if len(r.held) != 0 || !errors.Is(r.lineEnd([]byte("\n")), errLogLine) {
		t.Fatal(len(r.held))
	}
}

func FuzzParseEntry(f *testing.F) {
	for _, s := range []string{line(1, "stdout", "F", "text"), line(1, "stderr", "P", ""), "2016-10-06T00:17:09.669794202Z stdout", "x y z w", "", " ", "2016-10-06T00:17:09Z stdin F x"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := parseEntry(data)
		if err != nil {
			if !errors.Is(err, errLogFormat) {
				t.Fatal(err)
			}
			return
		}
		if (e.stream != stdoutStream && e.stream != stderrStream) || !bytes.Contains(data, e.text) {
			t.Fatalf("%q: %+v", data, e)
		}
	})
}

func FuzzTailIsASuffixOfTheWhole(f *testing.F) {
	f.Add(line(1, "stdout", "F", "a")+line(1, "stdout", "P", "b")+line(1, "stdout", "F", "c"), int64(1))
	f.Add("no log\n\n\nat all", int64(2))
	f.Fuzz(func(t *testing.T, text string, n int64) {
		start, err := tailOffset(strings.NewReader(text), int64(len(text)), n)
		if err != nil || start < 0 || start > int64(len(text)) {
			t.Fatal(start, err)
		}
		if start > 0 && start < int64(len(text)) && text[start-1] != '\n' {
			t.Fatalf("tail begins within a line, at %d of %q", start, text)
		}
	})
}
