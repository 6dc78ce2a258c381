package main

import (
	"errors"
	"net/http"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/node/nodelogs"
)

// nodeLogs says which logs of this machine its API shows; the names and defaults are the kubelet's.
type nodeLogs struct{ Serve, Query bool }

var errQueryWithoutLogs = errors.New("--enable-system-log-query needs --enable-system-log-handler")

func defaultNodeLogs() nodeLogs { return nodeLogs{Serve: true} }

func (n *nodeLogs) bind(f *pflag.FlagSet) {
	f.BoolVar(&n.Serve, "enable-system-log-handler", n.Serve, "show the files of --log-dir at /logs/ of the node's API to users with the right to nodes/log or nodes/proxy")
	f.BoolVar(&n.Query, "enable-system-log-query", n.Query, "answer ?query=SERVICE there from the journal of this machine, or from the service's file")
}

// handler serves the logs below dir; nil when nothing is to be shown.
func (n *nodeLogs) handler(dir string) http.Handler {
	if !n.Serve {
		return nil
	}
	return nodelogs.New(nodelogs.Config{Dir: dir, Query: n.Query})
}

func (n *nodeLogs) validate() []error {
	if n.Query && !n.Serve {
		return []error{errQueryWithoutLogs}
	}
	return nil
}
