package nodelogs

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// logDir is a log directory with traps that a pod could have laid.
func logDir(t *testing.T) string {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "log")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "app"), 0o755))
	must(os.WriteFile(filepath.Join(top, "secret"), []byte("treasure"), 0o600))
	for name, text := range map[string]string{"syslog": "of the system", "daemon.log": "of a daemon", "app/app.log": "of an app"} {
		must(os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	must(os.Symlink("../secret", filepath.Join(dir, "out")))
	must(os.Symlink(filepath.Join(top, "secret"), filepath.Join(dir, "absolute")))
	must(os.Symlink("syslog", filepath.Join(dir, "inside")))
	must(unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	return dir
}

// journal knows the unit known.service and prints its arguments.
func journal(ctx context.Context, args ...string) *exec.Cmd {
	if slices.Contains(args, "_SYSTEMD_UNIT") {
		return exec.CommandContext(ctx, "echo", "known.service other.service")
	}
	return exec.CommandContext(ctx, "echo", args...)
}

func TestLogs(t *testing.T) {
	h := New(Config{Dir: logDir(t), Query: true, Journal: journal})
	many := strings.Repeat("query=a&", maxServices+1)
	for target, c := range map[string]struct {
		code int
		want string
	}{
		"/":             {200, "syslog"},
		"/syslog":       {200, "of the system"},
		"/app/":         {200, "app.log"},
		"/app/app.log":  {200, "of an app"},
		"/inside":       {200, "of the system"},
		"/none":         {404, ""},
		"/out":          {404, ""},
		"/absolute":     {404, ""},
		"/pipe":         {404, ""},
		"/../secret":    {404, ""},
		"/?query=/pipe": {404, ""},

		"/?query=/syslog":                     {200, "of the system"},
		"/?query=/../secret":                  {404, ""},
		"/?query=/out":                        {404, ""},
		"/?query=%5Capp%5Capp.log":            {200, "of an app"},
		"/?query=daemon":                      {200, "of a daemon"},
		"/?query=syslog":                      {200, "of the system"},
		"/?query=app":                         {200, "of an app"},
		"/?query=app&query=daemon":            {200, "of an appof a daemon"},
		"/?query=nothing":                     {200, "log not found for nothing"},
		"/?query=out":                         {200, "log not found for out"},
		"/?query=known":                       {200, "--utc --no-pager --output=short-precise --unit=known"},
		"/?query=known&tailLines=5":           {200, "--pager-end --lines=5 --unit=known"},
		"/?query=known&pattern=a.*b":          {200, "--unit=known --grep=a.*b"},
		"/?query=known&boot=-1":               {200, "--boot -1"},
		"/?query=app&tailLines=5":             {200, "options present and query resolved to log files for [app]"},
		"/?query=know":                        {200, "log not found for know"},
		"/syslog?query=known":                 {406, "path not allowed in query mode"},
		"/?query":                             {400, "may not be empty"},
		"/?query=%20":                         {400, "may not be empty"},
		"/?tailLines=5":                       {400, "cannot be empty with options"},
		"/?query=/a&query=b":                  {400, "cannot specify a file and service"},
		"/?query=/a&query=/b":                 {400, "cannot specify more than one file"},
		"/?query=/a&boot=0":                   {400, "cannot specify file with options"},
		"/?query=a&boot=1":                    {400, "boot"},
		"/?query=a&tailLines=100001":          {400, "tailLines"},
		"/?query=a&tailLines=x":               {400, "tailLines"},
		"/?query=a&sinceTime=noon":            {400, "invalid time format"},
		"/?query=a&pattern=(":                 {400, "pattern"},
		"/?query=a%3Brm":                      {400, "unsupported characters"},
		"/?query=--version":                   {400, "unsupported characters"},
		"/?" + many:                           {400, "Too many"},
		"/?query=" + strings.Repeat("a", 257): {400, "Too long"},
		"/?query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z": {400, "must be after"},
		"/?query=known&sinceTime=2026-01-02T01:00:00%2B01:00":                     {200, "--since=2026-01-02 00:00:00 UTC"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if body := w.Body.String(); w.Code != c.code || !strings.Contains(body, c.want) || strings.Contains(body, "treasure") {
			t.Errorf("%s: %d %q, want %d and %q", target, w.Code, body, c.code, c.want)
		}
	}
}

func TestQueriesAreRefusedUnlessEnabled(t *testing.T) {
	h := New(Config{Dir: logDir(t), Journal: journal})
	for target, code := range map[string]int{"/?query=known": 406, "/?query=/syslog": 406, "/syslog": 200, "/": 200} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if w.Code != code {
			t.Errorf("%s: %d %q, want %d", target, w.Code, w.Body, code)
		}
	}
}

func TestFewQueriesRunAtTheSameTime(t *testing.T) {
	h := New(Config{Dir: logDir(t), Query: true, Journal: journal})
	for range mostQueries {
		h.turns <- struct{}{}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/?query=known", nil))
	if w.Code != http.StatusTooManyRequests {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func FuzzParseQuery(f *testing.F) {
	f.Add("query=a&tailLines=3&boot=0&pattern=x")
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q, err := parseQuery(v)
		if err != nil || q == nil {
			return
		}
		for _, a := range q.journalArgs(q.services) {
			if !strings.HasPrefix(a, "--") && (q.boot == nil || strings.Trim(a, "-0123456789") != "") {
				t.Errorf("%q becomes the argument %q", raw, a)
			}
		}
	})
}
