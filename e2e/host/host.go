package host

import (
	"bytes"
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
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/balsahq/balsa/e2e/lan"
)

// Config describes a Host. Balsa is the path of the binary.
type Config struct {
	Balsa string
	Flags []string // of every `balsa up` and `balsa server`
	// Machine is the machine of a network on which the host runs; nil: the host is alone. The machine keeps its network
	// and its directory when the host is closed.
	Machine *lan.Machine
}

// Host is one machine.
type Host struct {
	Name    string
	Addr    netip.Addr // its address in its network namespace
	DataDir string
	RunDir  string
	dirs    []string // the directories in the environment of its programs
	balsa   string
	flags   []string
	kubectl string // another program than the built-in kubectl, see UseKubectl
	machine *lan.Machine
	process *lan.Process // the program that Start has started
}

var count atomic.Int32

// New makes the namespace and the directories. No program runs yet.
func New(cfg Config) (*Host, error) {
	balsa, err := filepath.Abs(cfg.Balsa)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(balsa); err != nil {
		return nil, fmt.Errorf("the binary under test is missing: run `make build` (%w)", err)
	}
	n := int(count.Add(1))
	id := fmt.Sprintf("%d-%d", os.Getpid(), n)
	h := &Host{Name: "balsa-e2e-" + id, balsa: balsa, RunDir: "/run/balsa-" + id, Addr: netip.AddrFrom4([4]byte{10, 99, byte(n), 1}), machine: cfg.Machine}
	if m := cfg.Machine; m != nil {
		h.Name, h.Addr = m.Name, m.Addr
		h.DataDir, err = filepath.Join(m.Data(), "balsa"), os.MkdirAll(filepath.Join(m.Data(), "balsa"), 0o755)
	} else {
		h.DataDir, err = os.MkdirTemp("", "balsa-e2e-")
	}
	if err != nil {
		return nil, err
	}
	h.flags = append([]string{
		"--node-name=node-" + strconv.Itoa(n), "--log-dir=" + filepath.Join(h.DataDir, "log"), "--cgroup-root=/" + h.Name,
		"--eviction-hard=memory.available<100Mi", // how full the disk of the tests' machine is does not matter
	}, cfg.Flags...)
	h.dirs = []string{"BALSA_DATA_DIR=" + h.DataDir, "BALSA_RUN_DIR=" + h.RunDir}
	if h.machine == nil {
		err = h.makeNetns()
	} else if h.machine.OwnInit() {
		h.dirs[0] = "BALSA_DATA_DIR=" + installedDataDir
		err = h.install()
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	return h, nil
}

// The directories of an installed node, and where programs for other clusters look for the kubelet's.
const (
	installedDataDir = "/var/lib/balsa"
	KubeletDir       = installedDataDir + "/agent"
	usualKubeletDir  = "/var/lib/kubelet"
)

// install gives a machine that has its own mounts the host name and the directories of an installed node.
func (h *Host) install() error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	const script = `set -e; hostname "$1"; mount -t tmpfs -o mode=755 tmpfs /var/lib; mkdir -p "$3" "$5"
mount --bind "$2" "$3"; mkdir -p "$4"; mount --bind "$4" "$5"`
	_, err := output(h.machine.Command(ctx, "sh", "-c", script, "sh", h.NodeName(), h.DataDir, installedDataDir, KubeletDir, usualKubeletDir))
	return err
}

// makeNetns gives the host a loopback device and one Ethernet device with a default route, as a machine has.
func (h *Host) makeNetns() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	origin, err := netns.Get()
	if err != nil {
		return err
	}
	defer origin.Close()
	ns, err := netns.NewNamed(h.Name)
	if err != nil {
		return fmt.Errorf("make a network namespace: %w", err)
	}
	defer ns.Close()
	defer func() {
		if err := netns.Set(origin); err != nil {
			panic(err) // the thread would continue in the wrong network
		}
	}()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	// The other end of the cable is in the same namespace. It only gives eth0 a carrier.
	eth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "uplink"}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: h.Addr.AsSlice(), Mask: net.CIDRMask(24, 32)}}
	gateway := h.Addr.As4()
	gateway[3] = 254
	for _, step := range []func() error{
		func() error { return netlink.LinkSetUp(lo) },
		func() error { return netlink.LinkAdd(eth) },
		func() error { return netlink.AddrAdd(eth, addr) },
		func() error { return netlink.LinkSetUp(eth) },
		func() error {
			uplink, err := netlink.LinkByName("uplink")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(uplink)
		},
		func() error { return netlink.RouteAdd(&netlink.Route{LinkIndex: eth.Index, Gw: gateway[:]}) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("set up the test network: %w", err)
		}
	}
	return nil
}

// Command runs a program on this host. It ends with ctx.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	var cmd *exec.Cmd
	if h.machine != nil {
		cmd = h.machine.Command(ctx, name, args...)
	} else {
		cmd = exec.CommandContext(ctx, "nsenter", append([]string{"--net=/run/netns/" + h.Name, "--", name}, args...)...)
	}
	cmd.Env = append(append(os.Environ(), h.dirs...), "KUBECONFIG=")
	if h.kubectl != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+h.Kubeconfig())
	}
	return cmd
}

// Balsa runs a balsa command and returns its output.
func (h *Host) Balsa(ctx context.Context, args ...string) (string, error) {
	return output(h.Command(ctx, h.balsa, args...))
}

// Up runs `balsa up` with this host's flags; further flags, such as --demo=false, may be added. The server outlives the
// test's context.
func (h *Host) Up(ctx context.Context, flags ...string) (string, error) {
	cmd := h.Command(ctx, h.balsa, append(append([]string{"up"}, h.flags...), flags...)...)
	return output(cmd)
}

// Flags returns the flags that Up passes on.
func (h *Host) Flags() []string { return h.flags }

// Kubectl runs a kubectl command and returns its output.
func (h *Host) Kubectl(ctx context.Context, args ...string) (string, error) {
	return output(h.KubectlCommand(ctx, args...))
}

// KubectlCommand returns a kubectl command that is not started.
func (h *Host) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	if h.kubectl != "" {
		return h.Command(ctx, h.kubectl, args...)
	}
	return h.Command(ctx, h.balsa, append([]string{"kubectl"}, args...)...)
}

// UseKubectl makes Kubectl run another program than `balsa kubectl`.
func (h *Host) UseKubectl(program string) { h.kubectl = program }

// Kubeconfig returns the path of the administrator's kubeconfig.
func (h *Host) Kubeconfig() string { return filepath.Join(h.DataDir, "server", "admin.kubeconfig") }

// ServerPID returns the process ID of the running server, 0 if there is none.
func (h *Host) ServerPID() int {
	raw, err := os.ReadFile(filepath.Join(h.RunDir, "balsa.pid"))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || syscall.Kill(pid, 0) != nil {
		return 0
	}
	return pid
}

// Kill9 kills the server as a power cut would, and waits until it has ended.
func (h *Host) Kill9() error {
	pid := h.ServerPID()
	if pid == 0 {
		return errors.New("no server runs")
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || bytes.Contains(stat, []byte(") Z ")) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d does not end", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Log returns the server's log.
func (h *Host) Log() string {
	raw, err := os.ReadFile(filepath.Join(h.DataDir, "balsa.log"))
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// Close ends all programs and removes everything that this host made.
func (h *Host) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var faults []error
	if _, err := os.Stat(h.RunDir); err == nil {
		if out, err := h.Balsa(ctx, "down", "--purge", "--cgroup-root=/"+h.Name, "--log-dir="+filepath.Join(h.DataDir, "log")); err != nil {
			faults = append(faults, fmt.Errorf("balsa down: %w: %s", err, out))
		}
	}
	if h.machine == nil {
		if err := netns.DeleteNamed(h.Name); err != nil && !errors.Is(err, os.ErrNotExist) {
			faults = append(faults, err)
		}
	}
	return errors.Join(append(faults, os.RemoveAll(h.DataDir), os.RemoveAll(h.RunDir))...)
}

// output runs cmd and returns its standard output; the error contains its standard error.
func output(cmd *exec.Cmd) (string, error) {
	var out, fault bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &fault
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args[3:], " "), err, strings.TrimSpace(fault.String()))
	}
	return out.String() + fault.String(), nil
}
