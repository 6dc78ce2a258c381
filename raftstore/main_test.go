package raftstore

import (
	goparser "go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashChildDir); dir != "" {
		crashChild(dir)
		return
	}
	// When bbolt finds damage that only its own check sees, it panics, which
	// Open catches, and leaves the goroutine of that check behind.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("go.etcd.io/bbolt.(*DB).freepages.func2"))
}

// pureFiles drive the state, which is in package mvcc, and are as pure.
var pureFiles = []string{"fsm.go", "machine.go"}

// impureImports lists the imports of a source file through which a clock,
// randomness or the outside could get in.
func impureImports(name string, src any) ([]string, error) {
	f, err := goparser.ParseFile(token.NewFileSet(), name, src, goparser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var bad []string
	for _, i := range f.Imports {
		path, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			return nil, err
		}
		switch {
		case path == "time", path == "os", path == "net", path == "runtime", path == "syscall", path == "unsafe", path == "hash/maphash",
			strings.Contains(path, "rand"), strings.HasPrefix(path, "os/"), strings.HasPrefix(path, "net/"):
			bad = append(bad, path)
		}
	}
	return bad, nil
}

func TestTheStateHasNoClockNoRandomnessAndNoIO(t *testing.T) {
	for _, f := range pureFiles {
		bad, err := impureImports(f, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(bad) > 0 {
			t.Errorf("%s imports %v", f, bad)
		}
	}
}

func TestThePurityTestSeesAViolation(t *testing.T) {
	bad, err := impureImports("planted.go", "package p\nimport (\n\"time\"\n\"math/rand/v2\"\n\"os\"\n\"fmt\"\n)")
	if err != nil || len(bad) != 3 {
		t.Fatalf("found %v, %v", bad, err)
	}
}

func TestTheAdapterStaysSmall(t *testing.T) {
	b, err := os.ReadFile("fsm.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(b), "\n"); n >= 100 {
		t.Fatalf("fsm.go has %d lines", n)
	}
}
