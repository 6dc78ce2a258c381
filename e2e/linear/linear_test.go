package main

import (
	"flag"
	"testing"
	"time"
)

var (
	system = flag.String("system", "balsa", "what TestLinearUnderFaults tries: balsa or etcd")
	bin    = flag.String("bin", "../../bin/balsa", "its program")
	seed   = flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the faults")
)

// TestLinearUnderFaults is a short `make linear` for every change: three servers, a quarter of a minute, all kinds of
// faults.
func TestLinearUnderFaults(t *testing.T) {
	o, err := parse([]string{"-system=" + *system, "-bin=" + *bin, "-duration=15s", "-out=" + t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{options: o, seed: *seed, servers: 3}
	err = r.do(t.Context())
	t.Log(r.summary(err))
	if err != nil {
		t.Error(err)
		for _, line := range r.chaos.told() {
			t.Log(line)
		}
	}
}

// TestEveryFaultIsKnown: the flags take the names of all faults, and each fault has a duration.
func TestEveryFaultIsKnown(t *testing.T) {
	names := map[string]bool{}
	for _, m := range misfortunes {
		if names[m.name] || m.weight < 1 || m.most < m.least || m.begin == nil {
			t.Errorf("%+v", m)
		}
		names[m.name] = true
		if got, err := chosen(m.name); err != nil || len(got) != 1 {
			t.Errorf("%s: %v %v", m.name, got, err)
		}
	}
	if _, err := chosen("kill,no-such-fault"); err == nil {
		t.Error("an unknown fault is accepted")
	}
	if _, err := parse([]string{"-servers", "3,x"}); err == nil {
		t.Error("a strange number of servers is accepted")
	}
}
