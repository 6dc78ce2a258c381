package process

import (
	"net"
)

// notifySystemd speaks sd_notify(3) at a socket; at none it does nothing.
func notifySystemd(path, state string) {
	if path == "" {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return
	}
	defer conn.Close()
	_, _ = conn.Write([]byte(state))
}
