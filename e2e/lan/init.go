package lan

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// machineInit is PID 1 of a machine. It holds the machine's PID, mount and UTS namespaces; the kernel ends all that is
// in them when it ends.
type machineInit struct{ cmd *exec.Cmd }

// initScript makes a copy of this computer's mounts that nothing propagates to or from, and becomes PID 1. The kernel
// reaps the children of a process that ignores SIGCHLD, orphans that it adopts too.
const initScript = `set -e
exec 2>&1
mount --make-rprivate /
mount --make-rshared /
mount -t proc proc /proc
hostname "$1"
echo ready
exec env --ignore-signal=CHLD sleep infinity >/dev/null 2>&1`

// startInit starts PID 1 of a machine, by the name of its network namespace, which is its first host name too.
func startInit(name string) (*machineInit, error) {
	i := &machineInit{cmd: exec.Command("nsenter", "--net=/run/netns/"+name, "--", "sh", "-c", initScript, "sh", name)}
	// Go ends a child whose parent is outside its PID namespace when it sets Pdeathsig, but PID 1 cannot be ended from inside.
	i.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS, Setsid: true, Pdeathsig: syscall.SIGKILL,
	}
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := startHere(i.cmd); err != nil {
		return nil, err
	}
	if said, err := io.ReadAll(out); err != nil || !bytes.Equal(said, []byte("ready\n")) {
		return nil, errors.Join(fmt.Errorf("PID 1 of %s does not start: %s", name, said), err, i.cmd.Process.Kill(), i.cmd.Wait())
	}
	return i, nil
}

// start starts a program whose other namespaces are set by enter in the PID namespace. It ends with PID 1, so it needs
// no Pdeathsig; Go would take the parent outside the namespace for dead.
func (i *machineInit) start(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open("/proc/" + strconv.Itoa(i.cmd.Process.Pid) + "/ns/pid")
		if err != nil {
			started <- err
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID); err != nil {
			started <- fmt.Errorf("enter a PID namespace: %w", err)
			return
		}
		started <- cmd.Start()
	}()
	return <-started
}

// enter returns nsenter's flags for the machine's namespaces, without the PID namespace, for which nsenter would fork.
func (i *machineInit) enter() []string {
	return []string{"--target=" + strconv.Itoa(i.cmd.Process.Pid), "--net", "--mount", "--uts"}
}

// close ends PID 1, and with it every program of the machine.
func (i *machineInit) close() error {
	err := i.cmd.Process.Kill()
	var ended *exec.ExitError
	if waited := i.cmd.Wait(); !errors.As(waited, &ended) {
		err = errors.Join(err, waited)
	}
	return err
}
