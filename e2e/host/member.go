package host

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
)

// Start runs `balsa server` or `balsa agent` with this host's flags, as an init system would, on a host that is a
// machine of a network. The output goes to Log. The program dies with this process; its containers end with Close.
func (h *Host) Start(command string, args ...string) error {
	if h.machine == nil {
		return errors.New("this host is alone: use Up")
	}
	p, err := h.machine.Start(lan.Program{
		Path: h.balsa, Args: append(append([]string{command}, h.flags...), args...), Log: filepath.Join(h.DataDir, "balsa.log"),
		Env: append(slices.Clone(h.dirs), "KUBECONFIG="),
	})
	h.process = p
	return err
}

// Process returns the program that Start has started last.
func (h *Host) Process() *lan.Process { return h.process }

// Token creates a join token for a role on this host, which runs a server.
func (h *Host) Token(ctx context.Context, role string, flags ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := h.Balsa(ctx, append([]string{"token", "create", "--role=" + role}, flags...)...)
	if err != nil {
		return "", err
	}
	for _, word := range strings.Fields(out) {
		if strings.HasPrefix(word, "balsa1.") {
			return word, nil
		}
	}
	return "", errors.New("no token in: " + out)
}

// NodeName returns the node name in the host's flags.
func (h *Host) NodeName() string {
	for _, flag := range h.flags {
		if name, ok := strings.CutPrefix(flag, "--node-name="); ok {
			return name
		}
	}
	return ""
}
