package main

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/balsahq/balsa/e2e/figures"
)

func TestReportsOfIperfAreRead(t *testing.T) {
	end, err := parseIperf([]byte(`{"start":{},"end":{"sum_received":{"bits_per_second":2.5e9},"sum":{"seconds":2,"packets":1000,"lost_packets":100}}}`))
	if err != nil || end.Received.Bits != 2.5e9 || end.Sum.Packets-end.Sum.Lost != 900 || end.Sum.Seconds != 2 {
		t.Errorf("%+v %v", end, err)
	}
	if _, err := parseIperf([]byte(`{"start":{},"end":{},"error":"unable to connect"}`)); err == nil || !strings.Contains(err.Error(), "unable to connect") {
		t.Errorf("a failed run gives %v", err)
	}
	if _, err := parseIperf([]byte("iperf3: error")); err == nil {
		t.Error("what is no report was read")
	}
}

// message returns a netlink message as the kernel lays it out.
func message(kind uint16, payload ...byte) []byte {
	m := make([]byte, headers, headers+len(payload)+3)
	binary.NativeEndian.PutUint32(m, uint32(headers+len(payload)))
	binary.NativeEndian.PutUint16(m[4:], kind)
	m = append(m, payload...)
	return m[:(len(m)+3)&^3]
}

func TestChangesCountWhenTheyAreCommitted(t *testing.T) {
	a, b := netip.MustParseAddr("10.128.1.2"), netip.MustParseAddr("10.128.1.3")
	rule := func(addr netip.Addr) []byte {
		return message(nftNewGeneration-9, append([]byte{9, 9, 9}, addr.AsSlice()...)...)
	}
	commit := message(nftNewGeneration, 8, 0, 1, 0, 0, 0, 0, 7)
	looking := map[netip.Addr]bool{a: false, b: false}
	if got := committed(rule(a), looking); len(got) != 0 {
		t.Errorf("seen before the commit: %v", got)
	}
	if got := committed(slices.Concat(commit, rule(b)), looking); len(got) != 1 || got[0] != a {
		t.Errorf("the commit is of %v, want %s", got, a)
	}
	if got := committed(commit, looking); len(got) != 1 || got[0] != b {
		t.Errorf("the commit is of %v, want %s", got, b)
	}
	for _, torn := range [][]byte{nil, {1, 2, 3}, commit[:7], make([]byte, 64)} {
		if got := committed(torn, map[netip.Addr]bool{a: true}); len(got) != 0 {
			t.Errorf("%v: %v", torn, got)
		}
	}
}

func TestNumbersOfServicesRise(t *testing.T) {
	if got, err := parseSizes("50,100,10000"); err != nil || !slices.Equal(got, []int{50, 100, 10000}) {
		t.Errorf("%v %v", got, err)
	}
	for _, bad := range []string{"", "0", "-1", "100,100", "1000,100", "many", "1048576"} {
		if got, err := parseSizes(bad); err == nil {
			t.Errorf("%q is taken as %v", bad, got)
		}
	}
}

func TestTablesHaveSections(t *testing.T) {
	table := figures.Table{Upstream: true, Peer: "peer"}
	table.Section("rate")
	table.Add(figures.Ours, figures.Of("rate", "/s", ""), 4)
	table.Add(figures.Theirs, figures.Of("rate", "/s", ""), 2)
	var out strings.Builder
	if err := table.Print(&out); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 4 || !strings.Contains(lines[0], "peer (median)") || !strings.HasPrefix(lines[2], "| **rate**") || !strings.Contains(lines[3], "2.00") {
		t.Errorf("\n%s", out.String())
	}
	for _, line := range lines[1:] {
		if strings.Count(line, "|") != strings.Count(lines[0], "|") {
			t.Errorf("a line has not as many columns as the first:\n%s", out.String())
		}
	}
}
