package main

import (
	"strings"
	"testing"
)

// TestAWordThatIsNoCommandIsRefused, whichever command it is given to.
func TestAWordThatIsNoCommandIsRefused(t *testing.T) {
	for _, line := range []string{"token list", "certificates nonsense", "secrets nonsense", "snapshot nonsense", "cluster nonsense", "net nonsense", "image nonsense"} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(t.Output())
		cmd.SetErr(t.Output())
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("balsa %s: done", line)
		}
	}
}
