package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// host is what preflight looks at; a test gives another one.
type host struct {
	proc string // the proc file system
	euid int
}

func thisHost() host { return host{proc: "/proc", euid: os.Geteuid()} }

// preflight finds what would fail later, with worse words.
func (h host) preflight(cfg *config, withNode bool) error {
	if h.euid != 0 {
		return errors.New("root is needed: containers, networks and cgroups are made for you (run it with sudo)")
	}
	var faults []error
	if withNode {
		faults = append(faults, h.kernel())
	}
	if !cfg.agentOnly {
		faults = append(faults, freePort(cfg.BindAddress, cfg.Port, "port"))
	}
	if withNode {
		faults = append(faults, freePort("", cfg.KubeletPort, "kubelet-port"))
	}
	return errors.Join(faults...)
}

// kernel names what the running kernel lacks for pods.
func (h host) kernel() error {
	raw, err := os.ReadFile(filepath.Join(h.proc, "filesystems"))
	if err != nil {
		return fmt.Errorf("read the kernel's file systems: %w", err)
	}
	var faults []error
	if _, err := os.Stat("/etc/hosts"); err != nil {
		faults = append(faults, errors.New("there is no /etc/hosts, which every pod's is made from: make one, with a line for localhost"))
	}
	if !strings.Contains(string(raw), "\toverlay\n") {
		faults = append(faults, errors.New("the kernel has no overlay file system, which container images need: load it with `modprobe overlay`, or boot a kernel built with CONFIG_OVERLAY_FS"))
	}
	if !strings.Contains(string(raw), "\tcgroup2\n") && !strings.Contains(string(raw), "\tcgroup\n") {
		faults = append(faults, errors.New("the kernel has no control groups, which resource limits need: boot a kernel built with CONFIG_CGROUPS"))
	}
	return errors.Join(faults...)
}

func freePort(address string, port int, flag string) error {
	l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is taken by another program: stop that, or choose another with --%s", port, flag)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%s is no address of this machine: choose another with --bind-address", address)
	}
	return fmt.Errorf("port %d: %w", port, err)
}
