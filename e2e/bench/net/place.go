package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/balsahq/balsa/e2e/lan"
)

// place is a network namespace.
type place struct {
	ns   netns.NsHandle
	path string // by which other programs enter it
}

func machinePlace(m *lan.Machine) (place, error) {
	ns, err := netns.GetFromName(m.Name)
	return place{ns, "/run/netns/" + m.Name}, err
}

// newPlace makes a namespace that lives as long as its handle is open. It has no name in the file system.
func newPlace() (place, error) {
	var p place
	err := onThread(func() (err error) {
		if p.ns, err = netns.New(); err != nil {
			return fmt.Errorf("make a network namespace: %w", err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	p.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(p.ns))
	return p, err
}

// onThread runs do on a thread that ends afterwards.
func onThread(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- do()
	}()
	return <-done
}

// within runs do in the namespace.
func (p place) within(do func() error) error {
	return onThread(func() error {
		if err := netns.Set(p.ns); err != nil {
			return err
		}
		return do()
	})
}

// dial connects from the namespace.
func (p place) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	err = p.within(func() error {
		c, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return c, err
}

func (p place) listen(address string) (l net.Listener, err error) {
	err = p.within(func() error {
		l, err = net.Listen("tcp", address)
		return err
	})
	return l, err
}

// command returns a program that runs in the namespace and ends with ctx.
func (p place) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net=" + p.path, "--", name}, args...)...)
}

// do runs commands, one a line, in the namespace.
func (p place) do(ctx context.Context, script string) error {
	out, err := p.command(ctx, "sh", "-ec", script).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.TrimSpace(script), err, bytes.TrimSpace(out))
	}
	return nil
}

// pod is a namespace on a host's bridge.
type pod struct {
	place
	addr netip.Addr
}

// plug attaches a pod to a bridge of the host as the CNI plugin does; options are for its port on the bridge.
func (n *node) plug(ctx context.Context, bridge string, mtu int, options string) (*pod, error) {
	p := &pod{addr: netip.AddrFrom4([4]byte{10, 244, byte(n.number), byte(10 + len(n.pods))})}
	var err error
	if p.place, err = newPlace(); err != nil {
		return nil, err
	}
	n.pods = append(n.pods, p)
	port := fmt.Sprintf("pod%d", len(n.pods))
	return p, errors.Join(n.do(ctx, fmt.Sprintf(`
ip link add %[1]s mtu %[3]d type veth peer name eth0 mtu %[3]d netns %[4]s
ip link set %[1]s master %[2]s
ip link set %[1]s type bridge_slave %[5]s
ip link set %[1]s up`, port, bridge, mtu, p.path, options)), p.do(ctx, fmt.Sprintf(`
ip addr add %s/24 dev eth0
ip link set eth0 up
ip route add default via 10.244.%d.1`, p.addr, n.number)))
}

var mtuOfConflist = regexp.MustCompile(`"mtu": *(\d+)`)

// plugOverlay attaches a pod according to the overlay's CNI configuration.
func (n *node) plugOverlay(ctx context.Context) (*pod, error) {
	raw, err := os.ReadFile(n.dir("alone/net.d/10-balsa.conflist"))
	if err != nil {
		return nil, err
	}
	mtu := 1500
	if found := mtuOfConflist.FindSubmatch(raw); found != nil {
		if _, err := fmt.Sscan(string(found[1]), &mtu); err != nil {
			return nil, err
		}
	}
	return n.plug(ctx, "balsa0", mtu, "hairpin on isolated on")
}

// plugPlain attaches a pod to a hand-made bridge.
func (n *node) plugPlain(ctx context.Context, mtu int) (*pod, error) {
	return n.plug(ctx, "plain0", mtu, "hairpin on")
}

// plainBridge makes a host route between its pods and other hosts by hand.
func (n *node) plainBridge(ctx context.Context) error {
	return n.do(ctx, fmt.Sprintf(`
echo 1 > /proc/sys/net/ipv4/ip_forward
ip link add plain0 type bridge
ip addr add 10.244.%d.1/24 dev plain0
ip link set plain0 up`, n.number))
}

// plainVXLAN routes to the other host's pods through a VXLAN device with hand-made entries; it uses the overlay's port.
func (n *node) plainVXLAN(ctx context.Context, other *node) error {
	mac := func(n *node) string { return fmt.Sprintf("0a:58:0a:f4:%02x:00", n.number) }
	return n.do(ctx, fmt.Sprintf(`
ip link add plain-vxlan address %[1]s mtu 1450 type vxlan id 77 dstport 8472 local %[2]s nolearning
ip addr add 10.244.%[3]d.0/32 dev plain-vxlan
ip link set plain-vxlan up
bridge fdb add %[4]s dev plain-vxlan dst %[5]s self permanent
ip neigh add 10.244.%[6]d.0 lladdr %[4]s dev plain-vxlan nud permanent
ip route add 10.244.%[6]d.0/24 via 10.244.%[6]d.0 dev plain-vxlan onlink`,
		mac(n), n.Addr, n.number, mac(other), other.Addr, other.number))
}

// plainRoute makes the other host the gateway to its pods.
func (n *node) plainRoute(ctx context.Context, other *node) error {
	return n.do(ctx, fmt.Sprintf("ip route add 10.244.%d.0/24 via %s", other.number, other.Addr))
}
