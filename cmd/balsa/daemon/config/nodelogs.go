package config

import (
	"errors"
	"net/http"

	"github.com/balsahq/balsa/node/nodelogs"
)

// NodeLogs says which logs of this machine its API shows; the names and defaults are the kubelet's.
type NodeLogs struct{ Serve, Query bool }

var errQueryWithoutLogs = errors.New("--enable-system-log-query needs --enable-system-log-handler")

func defaultNodeLogs() NodeLogs { return NodeLogs{Serve: true} }

// Handler serves the logs below dir; nil when nothing is to be shown.
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
