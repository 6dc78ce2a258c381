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
	"github.com/balsahq/balsa/leader/scheduler/profile"
	"github.com/balsahq/balsa/raftstore/raftlog"
)

// Server is the configuration of a server: a control-plane peer that is also a node, unless DisableAgent is set.
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

	Autoscaling     horizontalpodautoscaler.Config
	SchedulerConfig string // file; see package profile

	// UnreachableTolerationSeconds is how long a pod without tolerations of its own stays bound to a node that is gone.
	UnreachableTolerationSeconds int64

	// FlagValues returns the settings of c by the names of the flags, for /flagz. The server calls it after it has put the
	// cluster's settings into c.
	FlagValues func(c *Server) map[string]string
}

// DefaultServer returns the configuration of a server without any flag.
func DefaultServer() Server {
	return Server{
		Node: DefaultNode(), BindAddress: "0.0.0.0", Port: 6443, UnreachableTolerationSeconds: 300,
		Snapshots: defaultSnapshots(), NodeTunnel: string(tunnel.Auto), API: defaultAPI(), Autoscaling: horizontalpodautoscaler.DefaultConfig(),
	}
}

// Complete sets what follows from other settings: the file of the audit log. Call it before Validate.
func (c *Server) Complete() { c.API.recordIn(filepath.Join(c.ServerDir(), "logs")) }

// Validate reports every wrong setting at once, each with the values that are allowed.
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
	if _, err := c.Scheduler(); err != nil {
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

// Scheduler reads how pods are placed.
func (c *Server) Scheduler() (profile.Settings, error) {
	s, err := profile.Read(c.SchedulerConfig)
	if err != nil {
		return s, fmt.Errorf("--scheduler-config: %w", err)
	}
	return s, nil
}

// LocalURL returns the API's URL for programs on this machine.
func (c *Server) LocalURL() string {
	host := c.BindAddress
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "https://" + net.JoinHostPort(host, strconv.Itoa(c.Port))
}
