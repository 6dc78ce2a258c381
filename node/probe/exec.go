package probe

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/balsahq/balsa/node/volume"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// execGrace is how much longer than its timeout a command is waited for: the runtime ends it itself.
const execGrace = 2 * time.Second

func (w *worker) execCheck(ctx context.Context, command []string, timeout time.Duration) outcome {
	if w.m.cfg.Exec == nil {
		return outcome{err: errors.New("this node cannot run commands in containers")}
	}
	static := map[string]string{}
	for _, e := range w.target.Container.Env {
		static[e.Name] = e.Value
	}
	cmd := make([]string, len(command))
	for i, arg := range command {
		cmd[i] = volume.Expand(arg, func(name string) (string, bool) { v, ok := static[name]; return v, ok })
	}
	bounded, cancel := context.WithTimeout(ctx, timeout+execGrace)
	defer cancel()
	exit, output, err := w.m.cfg.Exec(bounded, w.target.ContainerID, cmd, timeout)
	switch {
	case errors.Is(err, ErrTimeout), errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return failed("%s: %q timed out after %v", ErrTimeout, strings.Join(cmd, " "), timeout)
	case err != nil:
		return outcome{err: err}
	case exit != 0:
		return outcome{result: Failure, output: clip(string(output))}
	}
	return outcome{result: Success, output: clip(string(output))}
}
