package process

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

// host is the machine that Preflight looks at; tests use another one.
type host struct {
	proc string // the proc file system
	euid int
}

func thisHost() host { return host{proc: "/proc", euid: os.Geteuid()} }

// Preflight lists what a server or an agent needs of its machine.
type Preflight struct {
	Node  bool   // the machine is to run pods
	Ports []Port // TCP ports that the process will listen on
}

// Port is a TCP port that has to be free.
type Port struct {
	Address string // "" is every address
	Number  int
	Flag    string // the flag that chooses another port, without dashes
}

// RequireRoot returns an error unless this process runs as root.
func RequireRoot() error { return thisHost().root() }

// Check reports everything that is missing, so that the start does not fail later with
// a less clear error.
func (p Preflight) Check() error { return p.check(thisHost()) }

func (p Preflight) check(h host) error {
	if err := h.root(); err != nil {
		return err
	}
	var faults []error
	if p.Node {
		faults = append(faults, h.kernel())
	}
	for _, port := range p.Ports {
		faults = append(faults, port.free())
	}
	return errors.Join(faults...)
}

func (h host) root() error {
	if h.euid != 0 {
		return errors.New("root is needed: containers, networks and cgroups are made for you (run it with sudo)")
	}
	return nil
}

// kernel reports the features for pods that the running kernel, or the machine, lacks.
func (h host) kernel() error {
	raw, err := os.ReadFile(filepath.Join(h.proc, "filesystems"))
	if err != nil {
		return fmt.Errorf("cannot read which file systems the kernel has: %w", err)
	}
	var faults []error
	if _, err := os.Stat("/etc/hosts"); err != nil {
		faults = append(faults, errors.New("there is no /etc/hosts, from which every pod's is made: create it, with a line for localhost"))
	}
	if !strings.Contains(string(raw), "\toverlay\n") {
		faults = append(faults, errors.New("the kernel has no overlay file system, which container images need: load it with `modprobe overlay`, or boot a kernel built with CONFIG_OVERLAY_FS"))
	}
	if !strings.Contains(string(raw), "\tcgroup2\n") && !strings.Contains(string(raw), "\tcgroup\n") {
		faults = append(faults, errors.New("the kernel has no control groups, which resource limits need: boot a kernel built with CONFIG_CGROUPS"))
	}
	return errors.Join(faults...)
}

// free returns an error when another program has the port, or when the address is not one of this machine.
func (p Port) free() error {
	l, err := net.Listen("tcp", net.JoinHostPort(p.Address, strconv.Itoa(p.Number)))
	if err == nil {
		return l.Close()
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("port %d is taken by another program: stop that, or choose another with --%s", p.Number, p.Flag)
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) {
		return fmt.Errorf("%s is no address of this machine: choose another with --bind-address", p.Address)
	}
	return fmt.Errorf("port %d: %w", p.Number, err)
}
