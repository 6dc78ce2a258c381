package lan

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary is also the program that runs on the machines.
func TestMain(m *testing.M) {
	if os.Getenv("LAN_PRINT_CLOCK") == "" {
		os.Exit(m.Run())
	}
	start := time.Now()
	for range time.Tick(20 * time.Millisecond) {
		now := time.Now()
		fmt.Println(now.Unix(), now.Sub(start).Milliseconds())
	}
}

func newNetwork(t *testing.T, cfg Config) *Network {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("clean up: %v", err)
		}
		left, _ := filepath.Glob("/run/netns/" + n.name + "*")
		dirs, _ := filepath.Glob(os.TempDir() + "/" + n.name + "*")
		groups, _ := filepath.Glob(blkioRoot + "/" + n.name + "*")
		if left = append(append(left, dirs...), groups...); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return n
}

// echo runs an echo server on a machine until the test ends.
func echo(t *testing.T, m *Machine) {
	t.Helper()
	l, err := m.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
}

// ask sends n bytes from one machine to another and waits until they are back.
func ask(t *testing.T, from, to *Machine, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	began := time.Now()
	c, err := from.Dial(ctx, "tcp", netip.AddrPortFrom(to.Addr, 7).String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	go func() { _, _ = c.Write(make([]byte, n)) }()
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		return 0, err
	}
	_, err = io.ReadFull(c, make([]byte, n))
	return time.Since(began), err
}

// answered repeats ask until there is an answer, with a limit for a busy computer.
func answered(t *testing.T, from, to *Machine, n int) (took time.Duration, err error) {
	for end := time.Now().Add(30 * time.Second); ; {
		if took, err = ask(t, from, to, n); err == nil || time.Now().After(end) {
			return took, err
		}
	}
}

func TestCutAndHeal(t *testing.T) {
	n := newNetwork(t, Config{Machines: 3})
	a, b, c := n.Machines[0], n.Machines[1], n.Machines[2]
	for _, m := range n.Machines {
		echo(t, m)
	}
	reach := func(from, to *Machine, want bool) {
		t.Helper()
		try := ask
		if want {
			try = answered
		}
		if _, err := try(t, from, to, 1); (err == nil) != want {
			t.Errorf("%s to %s: %v, want reachable %v", from.portName(), to.portName(), err, want)
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	reach(a, b, true)
	reach(n.Client, b, true)
	must(n.Cut(a, b))
	reach(a, b, false)
	reach(b, a, false)
	reach(a, c, true)
	must(n.Heal())
	reach(a, b, true)
	must(n.Isolate(c))
	reach(a, c, false)
	reach(n.Client, c, true)
	must(n.Unplug(c))
	reach(n.Client, c, false)
	must(n.Heal())
	reach(n.Client, c, true)

	// One direction: packets from a are lost, packets from b arrive.
	packets, err := within(a.ns, func() (*os.File, error) { return listenUDP("0.0.0.0", 9) })
	must(err)
	defer packets.Close()
	must(n.CutOneWay(a, b))
	reach(a, b, false)
	send, err := b.Dial(t.Context(), "udp", netip.AddrPortFrom(a.Addr, 9).String())
	must(err)
	defer send.Close()
	// b must know a's link-layer address; it resolved it before the cut.
	_, err = send.Write([]byte("x"))
	must(err)
	must(packets.SetReadDeadline(time.Now().Add(30 * time.Second)))
	if _, err := packets.Read(make([]byte, 8)); err != nil {
		t.Errorf("the open direction: %v", err)
	}
}

func listenUDP(_ string, port int) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), "udp"), unix.Bind(fd, &unix.SockaddrInet4{Port: port})
}

func TestSlowLinkAndNewAddress(t *testing.T) {
	n := newNetwork(t, Config{Machines: 2})
	a, b := n.Machines[0], n.Machines[1]
	echo(t, b)
	const size = 64 << 10
	if _, err := answered(t, a, b, size); err != nil {
		t.Fatal(err)
	}
	if err := n.Slow(b, Link{BitsPerSecond: 1 << 20, Queue: 64 << 10}); err != nil {
		t.Fatal(err)
	}
	slow, err := answered(t, a, b, size)
	if err != nil || slow < 400*time.Millisecond {
		t.Errorf("64 KiB over 1 Mbit/s took %v (%v)", slow, err)
	}
	if err := n.Slow(b, Link{}); err != nil {
		t.Fatal(err)
	}
	took := slow
	for range 20 { // on a busy computer some take long
		if took, err = answered(t, a, b, size); err != nil || took < slow {
			break
		}
	}
	if err != nil || took >= slow {
		t.Errorf("64 KiB over the link as it was took %v (%v), over the slow one %v", took, err, slow)
	}
	old := b.Addr
	if err := b.ChangeAddress(netip.MustParseAddr("10.98.1.1")); err != nil {
		t.Fatal(err)
	}
	if _, err := answered(t, a, b, 1); err != nil {
		t.Errorf("at the new address: %v", err)
	}
	if _, err := ask(t, a, &Machine{Addr: old}, 1); err == nil {
		t.Error("the old address still answers")
	}
}

// syncs returns how many synced writes of 4 KiB the machine does in a second.
func syncs(t *testing.T, m *Machine) (int, error) {
	t.Helper()
	out, err := m.Start(Program{
		Path: "sh", Log: filepath.Join(m.Dir, "dd.log"),
		Args: []string{"-c", "sleep 0.2; exec timeout -s INT 2 dd if=/dev/zero bs=4k count=100000 oflag=dsync of=" + m.Data() + "/written"},
	})
	if err != nil {
		return 0, err
	}
	if err := out.wait(2 * time.Minute); err != nil {
		return 0, err
	}
	info, err := os.Stat(m.Data() + "/written")
	if err != nil {
		return 0, err
	}
	return int(info.Size() / 4096), os.Remove(m.Data() + "/written")
}

func TestDisks(t *testing.T) {
	n := newNetwork(t, Config{Machines: 1, DiskBytes: 64 << 20})
	m := n.Machines[0]
	if err := m.FillDisk(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.Data()+"/more", make([]byte, 8192), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("writing to a full disk: %v", err)
	}
	if err := m.EmptyDisk(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.Data()+"/more", make([]byte, 8192), 0o600); err != nil {
		t.Errorf("there is space again, but: %v", err)
	}
	fast, err := syncs(t, m) // makes the control group, too
	if err != nil {
		t.Fatal(err)
	}
	if err := m.SlowDisk(40); err != nil {
		t.Fatal(err)
	}
	slow, err := syncs(t, m)
	if err != nil {
		t.Fatal(err)
	}
	if slow > 200 || fast > 400 && slow > fast/2 { // a disk that other programs write to may be slow without a limit, too
		t.Errorf("a disk limited to 40 writes a second did %d in two seconds, %d without the limit", slow, fast)
	}
	if err := m.SlowDisk(0); err != nil {
		t.Fatal(err)
	}
}

func TestClockOfOneProcess(t *testing.T) {
	n := newNetwork(t, Config{Machines: 1})
	m := n.Machines[0]
	log := filepath.Join(m.Dir, "clock.log")
	p, err := m.Start(Program{Path: os.Args[0], Env: []string{"LAN_PRINT_CLOCK=1"}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	for _, off := range []time.Duration{0, time.Hour, -48 * time.Hour, 0} {
		if off != 0 {
			if err := p.ShiftClock(off); err != nil {
				t.Fatal(err)
			}
		} else if err := resetClock(p); err != nil {
			t.Fatal(err)
		}
		want := time.Now().Add(off).Unix()
		deadline := time.Now().Add(time.Minute)
		for {
			wall, _ := lastClock(log)
			if d := wall - want; wall != 0 && d >= 0 && d < 120 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("shifted by %s the process sees %d, want %d", off, wall, want)
			}
			<-time.After(10 * time.Millisecond)
		}
		if _, mono := lastClock(log); mono < 0 || mono > 600_000 {
			t.Errorf("the monotonic clock jumped too: %d ms", mono)
		}
	}
	if !p.Running() {
		t.Error("the process did not survive")
	}
}

func resetClock(p *Process) error { return p.ShiftClock(0) }

func lastClock(log string) (wall, mono int64) {
	f, err := os.Open(log)
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		a, b, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			continue
		}
		if w, err := strconv.ParseInt(a, 10, 64); err == nil {
			wall = w
		}
		if m, err := strconv.ParseInt(b, 10, 64); err == nil {
			mono = m
		}
	}
	return wall, mono
}

func TestSubnetsAreRouted(t *testing.T) {
	n := newNetwork(t, Config{Machines: 3, Subnets: 2})
	a, b := n.Machines[0], n.Machines[1]
	if a.Addr.String() != "10.98.0.10" || b.Addr.String() != "10.98.1.11" {
		t.Fatalf("the machines are at %s and %s", a.Addr, b.Addr)
	}
	for _, m := range n.Machines {
		echo(t, m)
	}
	for _, pair := range [][2]*Machine{{a, b}, {b, a}, {a, n.Machines[2]}, {n.Client, b}} {
		if _, err := answered(t, pair[0], pair[1], 1); err != nil {
			t.Errorf("%s to %s: %v", pair[0].Addr, pair[1].Addr, err)
		}
	}
	if err := n.Cut(a, b); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(t, a, b, 1); err == nil {
		t.Error("a cut between subnets cuts nothing")
	}
	if _, err := answered(t, a, n.Machines[2], 1); err != nil {
		t.Errorf("a cut cuts others too: %v", err)
	}
	if err := n.Heal(); err != nil {
		t.Fatal(err)
	}
	if err := b.ChangeAddress(netip.MustParseAddr("10.98.1.77")); err != nil {
		t.Fatal(err)
	}
	if _, err := answered(t, a, b, 1); err != nil {
		t.Errorf("after a change of address: %v", err)
	}
}
