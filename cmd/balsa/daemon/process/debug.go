package process

import (
	"io"
	"log/slog"
	"net/http"
	"runtime/pprof"
	"strings"

	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
)

// Paths of what a process tells of itself, on the API of a server and on the kubelet's API of a node, for callers that
// authorization allows them.
const (
	PathLogLevel   = "/debug/flags/v" // upstream's path
	PathLog        = "/balsa/log"
	PathGoroutines = "/balsa/goroutines"
)

// maxLevelBody bounds a new setting of levels, in bytes.
const maxLevelBody = 4 << 10

// DebugHandlers returns the handlers by their paths.
func DebugHandlers(levels *loglevel.Levels, log *slog.Logger) map[string]http.Handler {
	return map[string]http.Handler{
		PathLogLevel: levelHandler(levels, log), PathLog: http.HandlerFunc(serveLog), PathGoroutines: http.HandlerFunc(serveGoroutines),
	}
}

// levelHandler shows the levels, and sets them with PUT.
func levelHandler(levels *loglevel.Levels, log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet:
		case http.MethodPut:
			body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevelBody))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			s, err := loglevel.Parse(strings.TrimSpace(string(body)))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			log.Warn("the log levels change", "from", levels.Get(), "to", s)
			levels.Set(s)
		default:
			w.Header().Set("Allow", "GET, PUT")
			http.Error(w, "the levels are read with GET and set with PUT", http.StatusMethodNotAllowed)
			return
		}
		_, _ = io.WriteString(w, levels.Get().String()+"\n")
	})
}

// serveGoroutines shows where the process's goroutines are.
func serveGoroutines(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_ = pprof.Lookup("goroutine").WriteTo(w, 1)
}
