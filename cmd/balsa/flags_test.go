package main

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
)

func TestTheKindOfRaftsLogIsAFlag(t *testing.T) {
	for value, ok := range map[string]bool{"": true, "wal": true, "boltdb": true, "paper": false} {
		c, f := config.DefaultServer(), pflag.NewFlagSet("server", pflag.ContinueOnError)
		bindServer(f, &c)
		if err := f.Parse([]string{"--raft-log=" + value}); err != nil {
			t.Fatal(err)
		}
		if c.RaftLog != value {
			t.Errorf("the flag %q became %q", value, c.RaftLog)
		}
		if err := c.Validate(); (err == nil || !strings.Contains(err.Error(), "--raft-log")) != ok {
			t.Errorf("--raft-log=%s: %v", value, err)
		}
	}
}
