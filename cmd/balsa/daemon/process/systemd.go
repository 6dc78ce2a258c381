package process

import (
	"net"
)

// notifySystemd sends state to the socket of sd_notify(3) at path. It does nothing when path is empty, and ignores errors.
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
