package lan

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// clockCode replaces the process's clock_gettime. It calls the kernel and adds a number of seconds to CLOCK_REALTIME
// (0); the number is in the eight bytes at clockOffset.
//
//	mov  $228,%eax          b8 e4 00 00 00      SYS_clock_gettime
//	syscall                 0f 05
//	test %edi,%edi          85 ff
//	jne  done               75 0d
//	movabs $offset,%rcx     48 b9 …
//	add  %rcx,(%rsi)        48 01 0e
//	done: ret               c3
var clockCode = []byte{
	0xb8, 0xe4, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0d,
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
}

const clockOffset = 13

// ErrNoClock: this computer cannot shift the clock of one process.
var ErrNoClock = errors.New("the clock of one process can be shifted on amd64 only")

// ShiftClock sets the offset of the process's wall clock, in whole seconds, as if an administrator had set the
// machine's clock. The monotonic clock goes on, as in that case. Only programs that read the clock through the vDSO see
// it (Go programs do), until they end.
func (p *Process) ShiftClock(off time.Duration) error {
	if runtime.GOARCH != "amd64" {
		return ErrNoClock
	}
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", p.PID), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer mem.Close()
	deadline := time.Now().Add(5 * time.Second)
	at, err := p.clockAddress(mem)
	for ; err != nil; at, err = p.clockAddress(mem) { // the kernel maps the vDSO after the other parts of a program
		if !p.Running() || time.Now().After(deadline) {
			return fmt.Errorf("find the clock of process %d: %w", p.PID, err)
		}
		time.Sleep(time.Millisecond)
	}
	code := bytes.Clone(clockCode)
	binary.LittleEndian.PutUint64(code[clockOffset:], uint64(int64(off/time.Second)))
	// No thread may be inside the code while it changes.
	for time.Now().Before(deadline) {
		if err := p.freeze(); err != nil {
			return err
		}
		if inside, err := p.threadInside(at, at+uint64(len(code))); err == nil && !inside {
			_, err := mem.WriteAt(code, int64(at))
			return errors.Join(err, p.Resume())
		}
		if err := p.Resume(); err != nil {
			return err
		}
	}
	return errors.New("the process reads its clock all the time")
}

// clockAddress returns the address of clock_gettime in the process's vDSO.
func (p *Process) clockAddress(mem io.ReaderAt) (uint64, error) {
	maps, err := os.Open(fmt.Sprintf("/proc/%d/maps", p.PID))
	if err != nil {
		return 0, err
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if !strings.HasSuffix(lines.Text(), "[vdso]") {
			continue
		}
		var from, to uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x-%x", &from, &to); err != nil {
			return 0, err
		}
		image := make([]byte, to-from)
		if _, err := mem.ReadAt(image, int64(from)); err != nil {
			return 0, err
		}
		vdso, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return 0, err
		}
		symbols, err := vdso.DynamicSymbols()
		if err != nil {
			return 0, err
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				return from + s.Value, nil
			}
		}
	}
	return 0, errors.New("no vDSO with clock_gettime")
}

// freeze stops every thread and waits until all have stopped.
func (p *Process) freeze() error {
	if err := p.Pause(); err != nil {
		return err
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		stopped := true
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID))
		for _, task := range tasks {
			raw, err := os.ReadFile(task)
			if _, after, ok := bytes.Cut(raw, []byte(") ")); err == nil && ok && !bytes.HasPrefix(after, []byte("T")) {
				stopped = false
			}
		}
		if stopped && len(tasks) > 0 {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.Join(errors.New("the process does not stop"), p.Signal(syscall.SIGCONT))
}

// threadInside reports whether a thread of the stopped process has its program counter in [from, to).
func (p *Process) threadInside(from, to uint64) (bool, error) {
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", p.PID))
	if err != nil || len(tasks) == 0 {
		return false, errors.Join(err, errors.New("no threads"))
	}
	for _, task := range tasks {
		raw, err := os.ReadFile(task)
		if err != nil {
			return false, err
		}
		fields := strings.Fields(string(raw))
		pc, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
		if err != nil {
			return false, fmt.Errorf("%s: %q", task, raw)
		}
		if pc >= from && pc < to {
			return true, nil
		}
	}
	return false, nil
}
