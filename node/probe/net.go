package probe

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxOutput bounds what is kept of a probe's answer, in bytes.
const maxOutput = 10 << 10

func clip(s string) string {
	if len(s) > maxOutput {
		s = s[:maxOutput]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// dialer opens connections that leave no port in TIME_WAIT for a minute: a node makes very many of them.
func dialer() *net.Dialer {
	return &net.Dialer{
		KeepAlive: -1,
		Control: func(_, _ string, conn syscall.RawConn) error {
			var err error
			cerr := conn.Control(func(fd uintptr) {
				err = syscall.SetsockoptLinger(int(fd), syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1, Linger: 1})
			})
			if cerr != nil {
				return cerr
			}
			return err
		},
	}
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// resolvePort returns the number of a port given by number or by the name that the container's ports give it.
func resolvePort(p intstr.IntOrString, c *v1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				port = int(cp.ContainerPort)
			}
		}
		if port == 0 {
			_, err := strconv.Atoi(p.StrVal)
			return 0, fmt.Errorf("port %s not found: %w", p.StrVal, err)
		}
	}
	if port <= 0 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", port)
	}
	return port, nil
}

// tcpCheck succeeds when a connection can be opened.
func tcpCheck(ctx context.Context, host string, port int, timeout time.Duration) outcome {
	d := dialer()
	d.Timeout = timeout
	conn, err := d.DialContext(ctx, "tcp", hostPort(host, port))
	if err != nil {
		return failed("%s", err)
	}
	_ = conn.Close()
	return outcome{result: Success}
}
