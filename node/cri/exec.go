package cri

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	criapi "k8s.io/cri-api/pkg/apis"
	criclient "k8s.io/cri-client/pkg"
	utilexec "k8s.io/utils/exec"

	"github.com/balsahq/balsa/node/probe"
)

// Command is a command to run in a container.
type Command struct {
	ContainerID string
	Args        []string
	Timeout     time.Duration
}

// Exec runs a probe's command in a container and returns its exit code and output. A command that does not end in time is
// probe.ErrTimeout.
func Exec(ctx context.Context, rt criapi.RuntimeService, c Command) (int32, []byte, error) {
	out, stderr, err := rt.ExecSync(ctx, c.ContainerID, c.Args, c.Timeout)
	out = append(out, stderr...)
	var exit utilexec.ExitError
	switch {
	case err == nil:
		return 0, out, nil
	case errors.As(err, &exit):
		return int32(exit.ExitStatus()), out, nil
	case errors.Is(err, criclient.ErrCommandTimedOut), grpcstatus.Code(err) == codes.DeadlineExceeded:
		return 0, out, fmt.Errorf("command %q: %w", c.Args, probe.ErrTimeout)
	}
	return 0, out, err
}
