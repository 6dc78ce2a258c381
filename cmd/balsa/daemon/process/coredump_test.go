package process

import (
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNoCoreOfThisProcessButOfItsChildren(t *testing.T) {
	if os.Getenv("BALSA_TEST_CORE") == "" { // in a process of its own: the attribute is the whole process's
		again := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		again.Env = append(os.Environ(), "BALSA_TEST_CORE=1")
		if out, err := again.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ForbidCoreDump(slog.Default())
	if v, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || v != 0 {
		t.Fatalf("dumpable is %d, %v", v, err)
	}
	limit, err := exec.Command("sh", "-c", "ulimit -c; ulimit -Hc").Output()
	if err != nil {
		t.Fatal(err)
	}
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &own); err != nil {
		t.Fatal(err)
	}
	if own.Max == unix.RLIM_INFINITY && !strings.Contains(string(limit), "unlimited") {
		t.Errorf("a child's limits of core files are %q", limit)
	}
}
