// Package agent runs a machine that takes pods and is no server: it joins the cluster the first time, keeps the list of
// servers, renews its certificates from them, serves the API on a local port, and starts the node (nodesetup). Run is the
// only entry point.
package agent
