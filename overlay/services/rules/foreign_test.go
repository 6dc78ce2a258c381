package rules

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/balsahq/balsa/overlay/nettest"
	"github.com/balsahq/balsa/overlay/nft"
	"github.com/balsahq/balsa/overlay/services"
)

// applied opens a table with one service in it.
func applied(t *testing.T, ns int) (*Table, *services.Plan) {
	t.Helper()
	table, plan := open(t, ns, true), services.NewPlan()
	plan.SetService("ns/s", oneOfMany(0, 0))
	if _, err := table.Apply(plan); err != nil {
		t.Fatal(err)
	}
	return table, plan
}

func TestTableOfAnotherProgramIsAClearError(t *testing.T) {
	ns := nettest.Open(t)
	// A table with the flag owner lives as long as the connection over which it was made.
	other := exec.Command("nsenter", "--net="+nettest.Path(ns), "nft", "-i")
	commands, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill() })
	if _, err := io.WriteString(commands, "add table ip "+Name+" { flags owner; }\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "table of the other program", func() bool { return runNFT(t, ns, "list", "tables") != "" })
	table, plan := open(t, ns, true), services.NewPlan()
	plan.SetService("ns/s", oneOfMany(0, 0))
	if _, err := table.Apply(plan); !errors.Is(err, nft.ErrOwned) {
		t.Fatalf("Apply: %v, want ErrOwned", err)
	}
	if out := runNFT(t, ns, "list", "tables"); !strings.Contains(out, Name) {
		t.Errorf("the table of the other program is gone: %q", out)
	}
	commands.Close()
	_ = other.Wait()
	if _, err := table.Apply(plan); err != nil {
		t.Errorf("after the other program's end: %v", err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !holds(); {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}

func TestWhatOthersChangeIsPutRight(t *testing.T) {
	ns := nettest.Open(t)
	table, plan := applied(t, ns)
	for _, change := range []string{
		"add rule ip balsa services counter drop", "insert rule ip balsa way-services-hide-outside-5 drop", "flush chain ip balsa nat-output",
		"delete table ip balsa", "flush map ip balsa services", "flush map ip balsa services-groups", "flush map ip balsa backends",
		"add element ip balsa refused { 10.1.1.1 . tcp . 1 }", "chain ip balsa nat-prerouting { policy drop; }", "add table ip balsa { flags dormant; }",
	} {
		t.Run(change, func(t *testing.T) {
			runNFT(t, ns, change)
			table.Forget()
			if _, err := table.Apply(plan); err != nil {
				t.Fatal(err)
			}
			have, err := table.read(plan.Table())
			if err != nil {
				t.Fatal(err)
			}
			same(t, "after", have, plan.Table())
		})
	}
	runNFT(t, ns, "add chain ip balsa theirs")
	table.Forget()
	if _, err := table.Apply(plan); err != nil || !slices.Equal(table.ForeignChains(), []string{"theirs"}) {
		t.Errorf("strangers %v (%v)", table.ForeignChains(), err)
	}
}

func TestOnlyForeignChangesOfOurTablesAreTold(t *testing.T) {
	ns := nettest.Open(t)
	table, plan := applied(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan nft.Foreign, 100), make(chan error, 1)
	go func() {
		ended <- nft.Watch(ctx, nft.WatchConfig{
			NS: ns, Table: Name, Own: func(port uint32) bool { return port == table.Port() }, Changed: func(f nft.Foreign) { told <- f },
		})
	}()
	runNFT(t, ns, "add table ip other")
	// Until the watch is there, nothing is told: poke until it is.
	for first := true; first; {
		runNFT(t, ns, "add element ip balsa refused { 10.1.1.1 . tcp . 1 }")
		select {
		case f := <-told:
			if first = false; f.Family != nft.IPv4 || !strings.HasPrefix(f.Program, "nft (") {
				t.Errorf("told %+v", f)
			}
		case <-time.After(50 * time.Millisecond):
		}
	}
	for len(told) > 0 {
		<-told
	}
	plan.SetService("ns/s", oneOfMany(0, 1))
	if _, err := table.Apply(plan); err != nil {
		t.Fatal(err)
	}
	runNFT(t, ns, "add chain ip other x")
	runNFT(t, ns, "add table ip6 balsa")
	if f := <-told; f.Family == nft.IPv4 {
		t.Errorf("our own change, or one of another table, was told: %+v", f)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestLargeChangesTakeSeveralTransactions has the kernel take only little at once.
func TestLargeChangesTakeSeveralTransactions(t *testing.T) {
	ns := nettest.Open(t)
	table, plan := open(t, ns, true), many(4000)
	table.conn.PartLimit = 192 << 10
	for turn := range 2 {
		for i := range 4000 {
			plan.SetService(name(i), oneOfMany(i, turn))
		}
		if _, err := table.Apply(plan); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the kernel holds what was applied", func() bool {
		have, err := table.read(plan.Table())
		return err == nil && have != nil && services.Diff(have, plan.Table()).Empty()
	})
}
