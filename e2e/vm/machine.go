package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// machine is one emulated computer.
type machine struct {
	name, addr string
	began      time.Time

	qemu  *exec.Cmd
	ended chan struct{}
	pilot net.Conn
	lines *bufio.Reader
	dir   string
}

// boot starts a machine and waits until its pilot answers.
func boot(ctx context.Context, opts options, im image, work string, number int) (*machine, error) {
	m := &machine{
		name: fmt.Sprintf("vm%d", number), addr: fmt.Sprintf("10.97.0.%d", number), began: time.Now(),
		dir: filepath.Join(work, fmt.Sprintf("vm%d", number)), ended: make(chan struct{}),
	}
	if err := os.MkdirAll(m.dir, 0o755); err != nil {
		return nil, err
	}
	disk, socket := filepath.Join(m.dir, "disk.qcow2"), filepath.Join(m.dir, "pilot.sock")
	if err := shell(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", im.root, disk); err != nil {
		return nil, err
	}
	mac := fmt.Sprintf("52:54:00:62:61:%02x", number)
	m.qemu = exec.Command("qemu-system-x86_64",
		"-nodefaults", "-display", "none", "-no-user-config", "-accel", opts.accel, "-cpu", "max", "-smp", strconv.Itoa(opts.cpus), "-m", strconv.Itoa(opts.memory),
		"-kernel", im.kernel, "-initrd", im.initrd, "-append", "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=-1 systemd.show_status=0",
		"-drive", "file="+disk+",if=virtio,format=qcow2,cache=writeback",
		"-drive", "file="+im.payload+",if=virtio,format=raw,readonly=on",
		"-netdev", "socket,id=lan,mcast=230.97.0.1:"+strconv.Itoa(opts.port)+",localaddr=127.0.0.1", "-device", "virtio-net-pci,netdev=lan,mac="+mac,
		"-device", "virtio-rng-pci", "-serial", "file:"+filepath.Join(m.dir, "console.log"),
		"-chardev", "socket,id=pilot,server=on,wait=off,path="+socket, "-device", "virtio-serial", "-device", "virtserialport,chardev=pilot,name=pilot")
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := os.Create(filepath.Join(m.dir, "qemu.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	m.qemu.Stderr = log
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel ends the child with the thread that started it
		err := m.qemu.Start()
		started <- err
		if err == nil {
			_ = m.qemu.Wait()
			close(m.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := m.connect(ctx, socket); err != nil {
		m.off()
		return nil, fmt.Errorf("%s does not boot: %w; see %s", m.name, err, m.dir)
	}
	return m, m.settle(ctx, opts.patience)
}

func (m *machine) connect(ctx context.Context, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	for {
		conn, err := net.Dial("unix", socket)
		if err == nil {
			m.pilot, m.lines = conn, bufio.NewReader(conn)
			break
		}
		select {
		case <-m.ended:
			return errors.New("the emulator ended")
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
	stop := context.AfterFunc(ctx, func() { m.pilot.Close() })
	defer stop()
	line, err := m.lines.ReadString('\n')
	if err == nil && line != "ready\n" {
		err = fmt.Errorf("the pilot says %q", line)
	}
	return err
}

// settle sets the machine's name and address, and mounts the disk with the program.
func (m *machine) settle(ctx context.Context, patience time.Duration) error {
	_, err := m.run(ctx, patience, `set -e
hostname `+m.name+`
echo `+m.name+` >/etc/hostname
while [ ! -e /sys/class/net/eth0 ]; do sleep 0.5; done
ip link set eth0 up
ip addr add `+m.addr+`/24 dev eth0
ip route add default via 10.97.0.254
mount -o ro /dev/vdb /mnt`)
	return err
}

// run executes a script in the machine's shell and returns the output.
func (m *machine) run(ctx context.Context, limit time.Duration, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { m.pilot.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintln(m.pilot, base64.StdEncoding.EncodeToString([]byte(script))); err != nil {
		return "", err
	}
	line, err := m.lines.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s: no answer within %v: %w", m.name, limit, err)
	}
	code, encoded, _ := strings.Cut(strings.TrimSpace(line), " ")
	out, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "", err
	}
	if code != "0" {
		return string(out), fmt.Errorf("%s: exit %s: %s", m.name, code, lastLines(string(out), 12))
	}
	return string(out), nil
}

// off ends the machine as a power cut would.
func (m *machine) off() {
	_ = m.qemu.Process.Kill()
	<-m.ended
	if m.pilot != nil {
		m.pilot.Close()
	}
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
