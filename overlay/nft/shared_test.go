package nft

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/services"

	"github.com/balsahq/balsa/overlay/nettest"
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
	const flags, owned = 2, 2 // NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER
	ns := nettest.Open(t)
	other := open(t, ns, true)
	w := other.begin()
	w.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	w.text(unix.NFTA_TABLE_NAME, Name)
	w.u32(flags, owned)
	if err := other.commit(w); err != nil {
		t.Fatal(err)
	}
	table, plan := open(t, ns, true), services.NewPlan()
	plan.SetService("ns/s", oneOfMany(0, 0))
	if _, err := table.Apply(plan); !errors.Is(err, ErrOwned) {
		t.Fatalf("Apply: %v, want ErrOwned", err)
	}
	if out := nft(t, ns, "list", "table", "ip", Name); strings.Contains(out, "chain") {
		t.Errorf("the other's table was touched:\n%s", out)
	}
	w = other.begin()
	w.message(unix.NFT_MSG_DELTABLE, 0)
	w.text(unix.NFTA_TABLE_NAME, Name)
	if err := other.commit(w); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Apply(plan); err != nil {
		t.Errorf("with the other gone: %v", err)
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
			nft(t, ns, change)
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
	nft(t, ns, "add chain ip balsa theirs")
	table.Forget()
	if _, err := table.Apply(plan); err != nil || !slices.Equal(table.Strangers(), []string{"theirs"}) {
		t.Errorf("strangers %v (%v)", table.Strangers(), err)
	}
}

func TestOnlyForeignChangesOfOurTablesAreTold(t *testing.T) {
	ns := nettest.Open(t)
	table, plan := applied(t, ns)
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan Foreign, 100), make(chan error, 1)
	go func() {
		ended <- Watch(ctx, ns, func(port uint32) bool { return port == table.Port() }, func(f Foreign) { told <- f })
	}()
	nft(t, ns, "add table ip other")
	// Until the watch is there, nothing is told: poke until it is.
	for first := true; first; {
		nft(t, ns, "add element ip balsa refused { 10.1.1.1 . tcp . 1 }")
		select {
		case f := <-told:
			if first = false; !f.V4 || !strings.HasPrefix(f.Program, "nft (") {
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
	nft(t, ns, "add chain ip other x")
	nft(t, ns, "add table ip6 balsa")
	if f := <-told; f.V4 {
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
	table.socket.limit = 3 * elementsLimit
	for turn := range 2 {
		for i := range 4000 {
			plan.SetService(name(i), oneOfMany(i, turn))
		}
		if _, err := table.Apply(plan); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		have, err := table.read(plan.Table())
		if err == nil && have != nil && services.Diff(have, plan.Table()).Empty() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the kernel does not hold what was applied (%v)", err)
		}
	}
}
