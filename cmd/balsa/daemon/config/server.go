package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/balsahq/balsa/control/tunnel"
	"github.com/balsahq/balsa/leader/horizontalpodautoscaler"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Server is what a server can be told: the control plane, and the node that it is unless DisableAgent.
type Server struct {
	Node

	BindAddress      string
	AdvertiseAddress string
	Port             int      // of the API
	TLSSANs          []string // further names and addresses for the API's certificate
	DisableAgent     bool
	NodeTunnel       string
	Snapshots        Snapshots
	RaftLog          string // kind of Raft's log, see package raftlog; empty: the kind the data directory began with, or wal
	API              API
	LoadBalancerPool string
	DisableCloud     bool // leaves nodes of CloudProvider "external" to a cloud controller outside
	GatewayAPI       bool // installs the Gateway API's definitions

	Autoscaling horizontalpodautoscaler.Config

	// UnreachableTolerationSeconds is how long a pod waits for a node that is gone, when the pod says nothing about it.
	UnreachableTolerationSeconds int64

	// FlagValues returns the values of c by the names of flags, as /flagz shows them. The server calls it once the
	// cluster's settings are in c.
	FlagValues func(c *Server) map[string]string
}

// DefaultServer returns the settings of a server that is told nothing.
func DefaultServer() Server {
	return Server{
		Node: DefaultNode(), BindAddress: "0.0.0.0", Port: 6443, UnreachableTolerationSeconds: 300,
		Snapshots: defaultSnapshots(), NodeTunnel: string(tunnel.Auto), API: defaultAPI(), Autoscaling: horizontalpodautoscaler.DefaultConfig(),
	}
}

// Complete fills in what follows from other settings: where requests are recorded.
func (c *Server) Complete() { c.API.recordIn(filepath.Join(c.ServerDir(), "logs")) }

// Validate reports every fault at once, and what would be right.
func (c *Server) Validate() error {
	faults := c.Node.faults()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	faults = append(faults, portFaults(map[string]int{"port": c.Port})...)
	if err := c.LoadBalancer().Validate(); err != nil {
		fault("--load-balancer-pool: %w", err)
	}
	if err := c.Snapshots.validate(); err != nil {
		faults = append(faults, err)
	}
	if err := c.Autoscaling.Validate(); err != nil {
		faults = append(faults, err)
	}
	if err := c.API.validate(); err != nil {
		faults = append(faults, err)
	}
	if !slices.Contains(tunnel.Modes, tunnel.Mode(c.NodeTunnel)) {
		fault("--node-tunnel %q: give one of %v", c.NodeTunnel, tunnel.Modes)
	}
	if c.RaftLog != "" && !slices.Contains(raftlog.Kinds, raftlog.Kind(c.RaftLog)) {
		fault("--raft-log %q: give one of %v", c.RaftLog, raftlog.Kinds)
	}
	if c.UnreachableTolerationSeconds < 0 {
		fault("--unreachable-toleration-seconds %d: give 0 or more", c.UnreachableTolerationSeconds)
	}
	for flag, addr := range map[string]string{"bind-address": c.BindAddress, "advertise-address": c.AdvertiseAddress} {
		if addr == "" {
			continue
		}
		if _, err := netip.ParseAddr(addr); err != nil {
			fault("--%s %q: give an IP address", flag, addr)
		}
	}
	return errors.Join(faults...)
}

// LocalURL returns the URL of the API for programs on this machine.
func (c *Server) LocalURL() string {
	host := c.BindAddress
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(c.Port))
}
