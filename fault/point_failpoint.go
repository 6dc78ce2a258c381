//go:build failpoint

package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// PointsEnv names a directory with one file for each armed point. The file's name is the point's with "." for "/"; its
// content is how many times the point panics. The last panic removes the file.
const PointsEnv = "BALSA_FAILPOINTS"

var pointsMu sync.Mutex

// Point panics while a file in the directory of PointsEnv arms it.
func Point(name string) {
	dir := os.Getenv(PointsEnv)
	if dir == "" {
		return
	}
	file := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
	pointsMu.Lock()
	defer pointsMu.Unlock()
	raw, err := os.ReadFile(file)
	if err != nil {
		return
	}
	left, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || left < 1 {
		return
	}
	if left == 1 {
		_ = os.Remove(file)
	} else {
		_ = os.WriteFile(file, []byte(strconv.Itoa(left-1)), 0o600)
	}
	panic(fmt.Sprintf("planted at %s", name))
}
