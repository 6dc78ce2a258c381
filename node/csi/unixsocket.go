package csi

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// maxSocketPath is how long the path of a unix socket may be (sun_path, with its zero byte).
const maxSocketPath = 107

// Dial returns a connection to the gRPC service on a unix socket. Drivers are local and trusted: there is no TLS on it.
func Dial(path string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///localhost", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (conn net.Conn, err error) {
			err = shortened(path, func(short string) error {
				conn, err = (&net.Dialer{}).DialContext(ctx, "unix", short)
				return err
			})
			return conn, err
		}))
}

// Listen makes a unix socket that only root reaches, in place of one that is there. Its file stays when it is closed.
func Listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var l *net.UnixListener
	err := shortened(path, func(short string) (err error) {
		l, err = net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// shortened calls use with a path to the same place that is short enough for a socket: through its open directory.
func shortened(path string, use func(string) error) error {
	if len(path) <= maxSocketPath {
		return use(path)
	}
	dir, err := unix.Open(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: filepath.Dir(path), Err: err}
	}
	defer unix.Close(dir)
	return use(fmt.Sprintf("/proc/self/fd/%d/%s", dir, filepath.Base(path)))
}
