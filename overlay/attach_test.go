package overlay

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain lets the test program be run again inside a namespace as a program that attaches one: CNI plugins work in the
// namespace of the process that starts them.
func TestMain(m *testing.M) {
	if op := os.Getenv("OVERLAY_TEST_ATTACH"); op != "" {
		if err := attachHere(op, os.Getenv("CONF"), os.Getenv("BIN"), os.Getenv("ID"), os.Getenv("NS")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func attachHere(op, conf, bin, id, ns string) error {
	ctx := context.Background()
	if op == "detach" {
		a, err := Attached(conf, []string{bin}, id, ns)
		if err != nil {
			return err
		}
		return a.Detach(ctx)
	}
	a, err := Attach(ctx, conf, []string{bin}, id, ns)
	if err != nil {
		return err
	}
	fmt.Println(a.Addresses[0])
	return nil
}

// plugins builds the CNI plugins that ship with the product.
func plugins(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	const from = "github.com/containernetworking/plugins/plugins/"
	cmd := exec.Command("go", "build", "-C", "../node/runtime/tools", "-o", dir, from+"main/bridge", from+"main/loopback", from+"ipam/host-local")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build plugins: %v\n%s", err, out)
	}
	return dir
}

// TestConfigurationWorksWithThePlugins attaches two namespaces with the real plugins and lets them talk: directly, through
// a service, to a service of their own.
func TestConfigurationWorksWithThePlugins(t *testing.T) {
	w := newWorld(t)
	bin := plugins(t)
	run := func(op, id string, s space) string {
		cmd := exec.Command("nsenter", "--net="+w.host.Path, os.Args[0])
		cmd.Env = append(os.Environ(), "OVERLAY_TEST_ATTACH="+op, "CONF="+w.cfg.CNIConfDir, "BIN="+bin, "ID="+id, "NS="+s.Path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", op, id, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	one, two := newSpace(t), newSpace(t)
	addresses := map[string]string{"one": run("attach", "test-one", one), "two": run("attach", "test-two", two)}
	for name, a := range addresses {
		if ip, err := netip.ParseAddr(a); err != nil || !netip.MustParsePrefix("10.244.0.0/24").Contains(ip) || a == "10.244.0.1" {
			t.Fatalf("%s got %q", name, a)
		}
	}
	two.serve("two", addresses["two"]+":8080")
	if name, seen, err := one.ask("tcp", addresses["two"]+":8080"); name != "two" || seen != addresses["one"] {
		t.Errorf("directly: %q saw %q (%v)", name, seen, err)
	}
	podAddresses["two"] = addresses["two"]
	defer delete(podAddresses, "two")
	w.service("web", "10.96.0.20", []string{"two"})
	w.answers(one, "tcp", "10.96.0.20:80", "two")
	w.answers(two, "tcp", "10.96.0.20:80", "two")

	run("detach", "test-one", one)
	run("detach", "test-two", two)
	left, _ := filepath.Glob(filepath.Join(w.cfg.ipamDir(), networkName, "10.*"))
	if len(left) > 0 {
		t.Errorf("addresses still taken: %v", left)
	}
}
