package volume

import (
	"errors"
	"fmt"
	"os"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// noBacksteps refuses paths with "..", by which a path could mean another place than it seems to.
func noBacksteps(path string) error {
	for _, part := range strings.Split(path, "/") {
		if part == ".." {
			return errors.New("must not contain '..'")
		}
	}
	return nil
}

// checkHostPath checks that path is of the wanted type and makes it for the types that say OrCreate.
func checkHostPath(path string, want *v1.HostPathType) error {
	if err := noBacksteps(path); err != nil {
		return fmt.Errorf("invalid HostPath `%s`: %w", path, err)
	}
	if want == nil || *want == v1.HostPathUnset {
		return nil
	}
	st, err := os.Stat(path)
	missing := err != nil
	switch *want {
	case v1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(path, 0o755)
		}
	case v1.HostPathFileOrCreate:
		if missing {
			return makeFile(path)
		}
	}
	noun, fits := hostPathNoun(*want)
	if fits == nil {
		return fmt.Errorf("%s is an invalid volume type", *want)
	}
	if missing || !fits(st.Mode()) {
		return fmt.Errorf("hostPath type check failed: %s is not %s", path, noun)
	}
	return nil
}

func hostPathNoun(t v1.HostPathType) (string, func(os.FileMode) bool) {
	switch t {
	case v1.HostPathDirectoryOrCreate, v1.HostPathDirectory:
		return "a directory", os.FileMode.IsDir
	case v1.HostPathFileOrCreate, v1.HostPathFile:
		return "a file", os.FileMode.IsRegular
	case v1.HostPathSocket:
		return "a socket file", func(m os.FileMode) bool { return m&os.ModeSocket != 0 }
	case v1.HostPathCharDev:
		return "a character device", func(m os.FileMode) bool { return m&os.ModeCharDevice != 0 }
	case v1.HostPathBlockDev:
		return "a block device", func(m os.FileMode) bool { return m&os.ModeDevice != 0 && m&os.ModeCharDevice == 0 }
	}
	return "", nil
}

func makeFile(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}
