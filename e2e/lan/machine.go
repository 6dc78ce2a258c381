package lan

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// Machine is one host on the switch.
type Machine struct {
	Name string     // of its network namespace, below /run/netns
	Addr netip.Addr // of its eth0; only ChangeAddress changes it
	Dir  string     // its directory; its disk, if it has one, is mounted at Data()

	net  *Network
	port int // number of its port on the switch
	ns   netns.NsHandle
	disk bool
	init *machineInit // nil: the machine shares all but its network with this computer

	mu        sync.Mutex
	processes []*Process
}

// Data returns the directory for files that have to survive.
func (m *Machine) Data() string { return filepath.Join(m.Dir, "disk") }

func (m *Machine) portName() string { return "port" + strconv.Itoa(m.port) }

func (m *Machine) build(sw *netlink.Handle, bridge *netlink.Bridge, diskBytes int64) error {
	if err := os.MkdirAll(m.Data(), 0o755); err != nil {
		return err
	}
	if diskBytes > 0 && m != m.net.Client {
		if err := m.makeDisk(diskBytes); err != nil {
			return err
		}
	}
	var err error
	if m.ns, err = newNamespace(m.Name); err != nil {
		return err
	}
	if m.net.ownInit && m != m.net.Client {
		if m.init, err = startInit(m.Name); err != nil {
			return err
		}
	}
	port := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: m.portName()}, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(m.ns))}
	if err := sw.LinkAdd(port); err != nil {
		return err
	}
	if err := sw.LinkSetMaster(port, bridge); err != nil {
		return err
	}
	if err := sw.LinkSetUp(port); err != nil {
		return err
	}
	return m.inside(func(h *netlink.Handle, eth netlink.Link) error {
		return errors.Join(h.AddrAdd(eth, m.net.address(m.Addr)), h.LinkSetUp(eth), m.defaultRoute(h, eth))
	})
}

// inside calls do with a handle in the machine's namespace, and its eth0.
func (m *Machine) inside(do func(*netlink.Handle, netlink.Link) error) error {
	h, err := netlink.NewHandleAt(m.ns)
	if err != nil {
		return err
	}
	defer h.Close()
	eth, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	return do(h, eth)
}

func (m *Machine) defaultRoute(h *netlink.Handle, eth netlink.Link) error {
	gateway := netip.PrefixFrom(m.Addr, m.net.bits).Masked().Addr().Next()
	return h.RouteReplace(&netlink.Route{LinkIndex: eth.Attrs().Index, Gw: gateway.AsSlice()})
}

// ChangeAddress gives the machine another address of the same subnet, as a new DHCP lease would. Connections from and
// to the old address hang.
func (m *Machine) ChangeAddress(to netip.Addr) error {
	return m.inside(func(h *netlink.Handle, eth netlink.Link) error {
		if err := h.AddrDel(eth, m.net.address(m.Addr)); err != nil {
			return err
		}
		m.Addr = to
		return errors.Join(h.AddrAdd(eth, m.net.address(to)), m.defaultRoute(h, eth))
	})
}

// Command runs a program on this machine. It ends with ctx.
func (m *Machine) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--net=/run/netns/" + m.Name, "--", name}
	if m.init != nil {
		// nsenter forks to enter a PID namespace; setpriv makes the program end with it.
		enter = append(m.init.enter(), "--pid", "--", "setpriv", "--pdeathsig=KILL", name)
	}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
}

// OwnInit reports whether the machine has PID, mount and UTS namespaces of its own.
func (m *Machine) OwnInit() bool { return m.init != nil }

// Dial connects from this machine.
func (m *Machine) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return within(m.ns, func() (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, addr)
	})
}

// Listen opens a listener on this machine.
func (m *Machine) Listen(network, addr string) (net.Listener, error) {
	return within(m.ns, func() (net.Listener, error) { return net.Listen(network, addr) })
}

// within runs do on a thread in a network namespace.
func within[T any](ns netns.NsHandle, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		// The thread is never unlocked: it ends with the goroutine, in its namespace.
		runtime.LockOSThread()
		if err := netns.Set(ns); err != nil {
			done <- result{err: fmt.Errorf("enter a network namespace: %w", err)}
			return
		}
		v, err := do()
		done <- result{v, err}
	}()
	r := <-done
	return r.value, r.err
}

func (m *Machine) close() error {
	var faults []error
	m.mu.Lock()
	processes := m.processes
	m.mu.Unlock()
	for _, p := range processes {
		faults = append(faults, p.Kill9())
	}
	faults = append(faults, m.removeGroup())
	if m.init != nil {
		faults = append(faults, m.init.close())
	}
	if m.disk {
		faults = append(faults, m.removeDisk())
	}
	if m.ns.IsOpen() {
		faults = append(faults, m.ns.Close(), netns.DeleteNamed(m.Name))
	}
	return errors.Join(faults...)
}
