package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// PIDFile is the file with the ID of the process that uses a run directory. The process
// lives as long as the file is locked, whatever its content says.
type PIDFile struct{ file *os.File }

// Claim locks the PID file at path and writes this process's ID into it. It fails when
// another process holds the lock.
func Claim(path string) (*PIDFile, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("balsa runs already (process %d): stop it with `balsa down`, or give another --run-dir and --data-dir", readPID(path))
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := file.Truncate(0); err != nil {
		file.Close()
		return nil, err
	}
	if _, err := file.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0); err != nil {
		file.Close()
		return nil, err
	}
	return &PIDFile{file: file}, nil
}

// Release removes the file and unlocks it.
func (p *PIDFile) Release() {
	_ = os.Remove(p.file.Name())
	_ = p.file.Close()
}

func readPID(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0
	}
	return pid
}

// RunningPID returns the ID of the process that holds the lock of the PID file at path,
// or 0 when no process does.
func RunningPID(path string) int {
	file, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer file.Close()
	if unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
		return 0
	}
	return readPID(path)
}
