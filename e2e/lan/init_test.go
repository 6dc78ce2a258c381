package lan

import (
	"bufio"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestAMachineWithItsOwnInit(t *testing.T) {
	n := newNetwork(t, Config{Machines: 2, OwnInit: true})
	m := n.Machines[0]
	run := func(m *Machine, script string) string {
		t.Helper()
		out, err := m.Command(t.Context(), "sh", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	here, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := run(m, "hostname; cat /proc/1/comm"); got != m.Name+"\nsleep" {
		t.Errorf("host name and PID 1: %q", got)
	}
	run(m, "hostname changed")
	if now, err := os.Hostname(); err != nil || now != here {
		t.Errorf("this computer is called %q now, %q before: %v", now, here, err)
	}

	// A pod enters the machine's mounts as upstream's cases do, by its own way to /proc/1.
	run(m, "mount -t tmpfs tmpfs /mnt && touch /mnt/inside && nsenter --mount=/proc/1/ns/mnt test -e /mnt/inside")
	if _, err := os.Stat("/mnt/inside"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a mount of the machine is seen on this computer: %v", err)
	}
	run(n.Machines[1], "test ! -e /mnt/inside")
	run(m, `unshare --mount --propagation unchanged sh -c "mount -t tmpfs tmpfs /mnt && touch /mnt/propagated" && test -e /mnt/propagated`)

	// An orphan is reaped, not left as a zombie.
	orphan := run(m, "sh -c 'sleep 0.01 & echo $!'")
	run(m, "for i in $(seq 500); do test -e /proc/"+orphan+" || exit 0; sleep 0.01; done; cat /proc/"+orphan+"/status; exit 1")
}

func TestTheProgramsOfAMachineWithItsOwnInit(t *testing.T) {
	n := newNetwork(t, Config{Machines: 1, OwnInit: true})
	m := n.Machines[0]
	pipe := filepath.Join(m.Dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(pipe, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := reader.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(reader)
	start := func(script string) *Process {
		t.Helper()
		p, err := m.Start(Program{Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(m.Dir, "log")})
		if err != nil {
			t.Fatal(err)
		}
		if line, err := lines.ReadString('\n'); err != nil || line != "here\n" {
			t.Fatalf("%q: %v", line, err)
		}
		return p
	}
	// Signals reach the program itself.
	asked := start("trap 'exit 0' TERM; echo here >" + pipe + "; while :; do sleep 0.01; done")
	if err := errors.Join(asked.Stop(10*time.Second), asked.result); err != nil {
		t.Error(err)
	}
	// A program that left its session ends with the machine too, which its end of the pipe shows.
	start("setsid sh -c 'echo here; exec sleep infinity' >" + pipe + " & sleep infinity")
	if err := errors.Join(held.Close(), m.init.cmd.Process.Kill()); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(lines); err != nil {
		t.Errorf("the program outlives its machine: %v", err)
	}
}
