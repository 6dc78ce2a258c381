package nft

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/balsahq/balsa/overlay/nettest"
)

// runNFT runs the command nft in the namespace.
func runNFT(t *testing.T, ns int, args ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + nettest.Path(ns), "nft"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

func dialTest(t *testing.T, ns int) *Conn {
	t.Helper()
	c, err := Dial(ns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// sample is a table with a set of each kind and a chain that uses them.
func sample(f Family) *Table {
	verdicts := Set{Name: "verdicts", Flags: Map, Key: f.AddressType(), Data: nftables.TypeVerdict}
	return &Table{
		Family: f, Name: "sample",
		Sets: []Set{
			{Name: "members", Key: f.AddressType()}, {Name: "ranges", Flags: Interval, Key: f.AddressType()}, verdicts,
			{Name: "values", Flags: Map, Key: f.AddressType(), Data: nftables.TypeMark},
		},
		Chains: []Chain{
			{Name: "inner", Rules: []Rule{{Drop()}}},
			{
				Name: "outer", Hook: &Hook{nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter},
				Rules: []Rule{
					{f.LoadSource(0), Member("members", 0), Accept()}, {f.LoadSource(0), Member("ranges", 0), Accept()},
					{f.LoadSource(0), VerdictOf("verdicts", 0)}, append(InLink("eth0"), Jump("inner")),
				},
			},
		},
	}
}

func key(f Family, n int) []byte {
	if f == IPv4 {
		return []byte{10, 0, byte(n >> 8), byte(n)}
	}
	return append([]byte{0xfd, 13: 0}, byte(n>>8), byte(n))
}

func applySample(t *testing.T, c *Conn, f Family) *Table {
	t.Helper()
	table, change := sample(f), Change{}
	change.ReplaceTable(table)
	if err := c.Apply(&change); err != nil {
		t.Fatal(err)
	}
	return table
}

func contents(t *testing.T, c *Conn, table *Table) *Contents {
	t.Helper()
	found, err := c.ReadTable(table)
	if err != nil || found == nil {
		t.Fatalf("contents %v: %v", found, err)
	}
	return found
}

func TestWhatIsReadIsWhatWasWritten(t *testing.T) {
	for _, f := range Families {
		t.Run(f.String(), func(t *testing.T) {
			ns := nettest.Open(t)
			c := dialTest(t, ns)
			table := applySample(t, c, f)
			if !contents(t, c, table).Holds(table) {
				t.Error("the table is not held as it was written")
			}
			want := map[string]Elements{
				"members":  {Add: []Element{{Key: key(f, 1)}, {Key: key(f, 2)}}},
				"ranges":   {Add: []Element{{Key: key(f, 10)}, {Key: key(f, 20), EndsRange: true}}},
				"verdicts": {Add: []Element{{Key: key(f, 3), Chain: "inner", Verdict: GotoVerdict}}},
				"values":   {Add: []Element{{Key: key(f, 4), Value: []byte{1, 2, 3, 4}}}},
			}
			var change Change
			for set, e := range want {
				change.SetElements(table, set, e)
			}
			if err := c.Apply(&change); err != nil {
				t.Fatal(err)
			}
			for set, e := range want {
				got, err := c.ReadElements(table, set, &Arena{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				got = slices.DeleteFunc(got, func(e Element) bool { return e.EndsRange && !bytes.Contains(e.Key, key(f, 20)) }) // the kernel's own end of all
				slices.SortFunc(got, func(a, b Element) int { return bytes.Compare(a.Key, b.Key) })
				if fmt.Sprint(got) != fmt.Sprint(e.Add) {
					t.Errorf("%s: read %v, want %v", set, got, e.Add)
				}
			}
			if out := runNFT(t, ns, "list", "ruleset"); !strings.Contains(out, "goto inner") {
				t.Errorf("nft lists\n%s", out)
			}
		})
	}
}

func TestAnyDifferenceOfATableIsFound(t *testing.T) {
	for _, difference := range []string{
		"add rule ip sample inner counter", "flush chain ip sample inner", "insert rule ip sample outer drop", "delete chain ip sample outer",
		"chain ip sample outer { policy drop; }", "flush table ip sample; delete set ip sample members",
		"flush table ip sample; delete set ip sample members; add set ip sample members { type ipv4_addr; flags timeout; }",
	} {
		t.Run(difference, func(t *testing.T) {
			ns := nettest.Open(t)
			c := dialTest(t, ns)
			table := applySample(t, c, IPv4)
			runNFT(t, ns, difference)
			if contents(t, c, table).Holds(table) {
				t.Error("the difference was not found")
			}
		})
	}
	t.Run("no table", func(t *testing.T) {
		ns := nettest.Open(t)
		c := dialTest(t, ns)
		table := applySample(t, c, IPv4)
		runNFT(t, ns, "delete table ip sample")
		if found, err := c.ReadTable(table); found != nil || err != nil {
			t.Errorf("found %v: %v", found, err)
		}
	})
}

func TestAChangeOfBothFamiliesIsMadeWholeOrNotAtAll(t *testing.T) {
	ns := nettest.Open(t)
	c := dialTest(t, ns)
	v4, v6 := applySample(t, c, IPv4), applySample(t, c, IPv6)
	var change Change
	change.SetElements(v4, "members", Elements{Add: []Element{{Key: key(IPv4, 1)}}})
	change.SetElements(v6, "members", Elements{Delete: []Element{{Key: key(IPv6, 1)}}}) // is not there
	if err := c.Apply(&change); !errors.Is(err, unix.ENOENT) || !strings.Contains(err.Error(), "delete elements of members") {
		t.Fatalf("Apply: %v", err)
	}
	if got, err := c.ReadElements(v4, "members", &Arena{}, nil); err != nil || len(got) != 0 {
		t.Errorf("half of the change was made: %v (%v)", got, err)
	}
	// The connection is as good as before.
	change = Change{}
	change.SetElements(v4, "members", Elements{Add: []Element{{Key: key(IPv4, 1)}}})
	if err := c.Apply(&change); err != nil {
		t.Error(err)
	}
}

// TestAReplacedElementIsNeverMissingBetweenParts cuts a large replacement into parts and reads between them.
func TestAReplacedElementIsNeverMissingBetweenParts(t *testing.T) {
	const count = 2800 // two parts
	ns := nettest.Open(t)
	c := dialTest(t, ns)
	table := applySample(t, c, IPv4)
	var first, second Change
	var make, replace Elements
	for n := range count {
		k := key(IPv4, n)
		make.Value(k, nil, []byte{0, 0, 0, 1})
		replace.Value(k, []byte{0, 0, 0, 1}, []byte{0, 0, 0, 2})
	}
	first.SetElements(table, "values", make)
	if err := c.Apply(&first); err != nil {
		t.Fatal(err)
	}
	c.PartLimit = 3 * elementsLimit
	second.SetElements(table, "values", replace)
	second.add(func(r *renderer) { // what the last part would hold fails
		r.deleteSet(table, "no such set")
	})
	if err := c.ApplyInParts(&second); !errors.Is(err, unix.ENOENT) {
		t.Fatalf("ApplyInParts: %v, want that of the last part", err)
	}
	byValue := map[byte]int{}
	if err := RetryRead(func() error {
		got, err := c.ReadElements(table, "values", &Arena{}, nil)
		clear(byValue)
		for _, e := range got {
			byValue[e.Value[3]]++
		}
		if err == nil && byValue[1]+byValue[2] != count {
			err = ErrUnstable
		}
		return err
	}); err != nil {
		t.Fatalf("%v: %v", byValue, err)
	}
	if byValue[1] == 0 || byValue[2] == 0 {
		t.Errorf("the replacement was not cut: %v", byValue)
	}
}
