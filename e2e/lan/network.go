package lan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Config describes a Network.
type Config struct {
	Machines  int   // without the client
	DiskBytes int64 // size of each machine's disk; 0: a directory of this computer
	// Subnets is the number of subnets, at most 16; 0 means one. The machines are distributed over them in turns, the
	// client is in the first. The switch routes between them packets with their source addresses and no others, as a
	// router between sites does.
	Subnets int
	// OwnInit gives each machine but the client PID, mount and UTS namespaces of its own, with a PID 1: all its programs
	// end with the machine, and its mounts and host name are not those of this computer. Mounts propagate inside it.
	OwnInit bool
}

// Network is a switch with machines on it.
type Network struct {
	Machines []*Machine
	Client   *Machine // one more machine, for the clients of the others' programs

	name string // start of all names of this network
	dir  string // holds the machines' directories
	sw   netns.NsHandle
	bits int // address bits that name its subnet

	ownInit bool

	mu  sync.Mutex
	cut map[wire]bool
}

// wire is one direction between two ports of the switch.
type wire struct{ from, to int }

const (
	namePrefix = "balsa-lan-"
	bridgeName = "bridge"
)

var count atomic.Int32

// Made reports whether a path belongs to a network of this package, made by any process; such paths are visible on the
// whole computer.
func Made(path string) bool { return strings.HasPrefix(filepath.Base(path), namePrefix) }

// New makes the switch and the machines. No program runs on them yet.
func New(cfg Config) (*Network, error) {
	sweep()
	n := &Network{name: fmt.Sprintf("%s%d-%d", namePrefix, os.Getpid(), count.Add(1)), cut: map[wire]bool{}, sw: netns.None(), bits: 16, ownInit: cfg.OwnInit}
	if cfg.Subnets > 1 {
		n.bits = 24
	}
	if err := n.build(cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("set up the test network: %w", err), n.Close())
	}
	return n, nil
}

func (n *Network) build(cfg Config) error {
	var err error
	if n.dir = filepath.Join(os.TempDir(), n.name); os.Mkdir(n.dir, 0o755) != nil {
		return fmt.Errorf("%s is there already", n.dir)
	}
	if n.sw, err = newNamespace(n.name + "-sw"); err != nil {
		return err
	}
	h, err := netlink.NewHandleAt(n.sw)
	if err != nil {
		return err
	}
	defer h.Close()
	subnets := max(1, cfg.Subnets)
	bridges := make([]*netlink.Bridge, subnets)
	for i := range bridges {
		if bridges[i], err = n.subnet(h, i); err != nil {
			return fmt.Errorf("subnet %d: %w", i, err)
		}
	}
	if subnets > 1 {
		if err := n.route(); err != nil {
			return err
		}
	}
	for i := range cfg.Machines + 1 {
		on := i % subnets
		if i == cfg.Machines { // the client
			on = 0
		}
		m := &Machine{Name: fmt.Sprintf("%s-m%d", n.name, i), Addr: netip.AddrFrom4([4]byte{10, 98, byte(on), byte(10 + i)}), net: n, port: i, ns: netns.None()}
		m.Dir = filepath.Join(n.dir, "m"+strconv.Itoa(i))
		if i == cfg.Machines {
			n.Client = m
		} else {
			n.Machines = append(n.Machines, m)
		}
		if err := m.build(h, bridges[on], cfg.DiskBytes); err != nil {
			return fmt.Errorf("machine %d: %w", i, err)
		}
	}
	return nil
}

// subnet makes the bridge of a subnet; its address is the subnet's gateway.
func (n *Network) subnet(h *netlink.Handle, number int) (*netlink.Bridge, error) {
	name := bridgeName
	if number > 0 {
		name += strconv.Itoa(number)
	}
	// A bridge without a fixed hardware address takes the one of its next port.
	mac := net.HardwareAddr{2, 0, 0, 0, 98, byte(number)}
	bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name, HardwareAddr: mac}}
	return bridge, errors.Join(h.LinkAdd(bridge), h.AddrAdd(bridge, n.address(netip.AddrFrom4([4]byte{10, 98, byte(number), 1}))), h.LinkSetUp(bridge))
}

// route makes the switch route between its subnets, and drop packets with other source addresses.
func (n *Network) route() error {
	_, err := within(n.sw, func() (struct{}, error) {
		var faults []error
		for path, value := range map[string]string{"ip_forward": "1", "conf/all/rp_filter": "1"} {
			faults = append(faults, os.WriteFile(filepath.Join("/proc/sys/net/ipv4", path), []byte(value), 0))
		}
		return struct{}{}, errors.Join(faults...)
	})
	return err
}

func (n *Network) address(a netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(n.bits, 32)}}
}

// newNamespace makes a named network namespace with its loopback device up.
func newNamespace(name string) (netns.NsHandle, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	origin, err := netns.Get()
	if err != nil {
		return netns.None(), err
	}
	defer origin.Close()
	ns, err := netns.NewNamed(name)
	if err != nil {
		return netns.None(), fmt.Errorf("make a network namespace: %w", err)
	}
	defer func() {
		if err := netns.Set(origin); err != nil {
			panic(err) // the thread would continue in the wrong network
		}
	}()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return ns, err
	}
	return ns, netlink.LinkSetUp(lo)
}

// all returns the machines and the client.
func (n *Network) all() []*Machine {
	if n.Client == nil {
		return n.Machines
	}
	return append(n.Machines[:len(n.Machines):len(n.Machines)], n.Client)
}

// Close ends every program on the machines and removes everything.
func (n *Network) Close() error {
	var faults []error
	for _, m := range n.all() {
		faults = append(faults, m.close())
	}
	if n.sw.IsOpen() {
		faults = append(faults, n.sw.Close(), netns.DeleteNamed(n.name+"-sw"))
	}
	return errors.Join(append(faults, os.RemoveAll(n.dir))...)
}

// sweep removes what is left of networks whose makers have ended. Their programs ended with them.
func sweep() {
	dead := func(path string) bool {
		text, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(path), namePrefix), "-")
		pid, err := strconv.Atoi(text)
		return err == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	mounts, _ := filepath.Glob(filepath.Join(os.TempDir(), namePrefix+"*", "m*", "disk"))
	for _, mount := range mounts {
		if dead(filepath.Dir(filepath.Dir(mount))) {
			_ = syscall.Unmount(mount, syscall.MNT_DETACH)
		}
	}
	for _, pattern := range []string{"/run/netns/" + namePrefix + "*", filepath.Join(os.TempDir(), namePrefix+"*"), filepath.Join(blkioRoot, namePrefix+"*"), filepath.Join(unifiedRoot, namePrefix+"*")} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			switch {
			case !dead(path):
			case strings.HasPrefix(path, "/run/netns/"):
				_ = netns.DeleteNamed(filepath.Base(path))
			case strings.HasPrefix(path, "/sys/"):
				_ = syscall.Rmdir(path)
			default:
				_ = os.RemoveAll(path)
			}
		}
	}
}
