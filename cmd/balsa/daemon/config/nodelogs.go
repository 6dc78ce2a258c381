package config

import (
	"errors"
	"net/http"

	"github.com/balsahq/balsa/node/nodelogs"
)

// NodeLogs configures which logs of this machine the kubelet's API shows. Names and defaults are the kubelet's.
type NodeLogs struct{ Serve, Query bool }

var errQueryWithoutLogs = errors.New("--enable-system-log-query needs --enable-system-log-handler")

func defaultNodeLogs() NodeLogs { return NodeLogs{Serve: true} }

// Handler returns the handler that serves the logs below dir, or nil when no logs are served.
func (n *NodeLogs) Handler(dir string) http.Handler {
	if !n.Serve {
		return nil
	}
	return nodelogs.New(nodelogs.Config{Dir: dir, Query: n.Query})
}

func (n *NodeLogs) validate() []error {
	if n.Query && !n.Serve {
		return []error{errQueryWithoutLogs}
	}
	return nil
}
