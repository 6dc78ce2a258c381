package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestReportsAreRead(t *testing.T) {
	summary, failed := read(`[1] junk
Summarizing 2 Failures:
  [FAIL] [sig-network] Services [It] should serve a basic endpoint
  test/e2e/network/service.go:800
  [TIMEDOUT] [sig-network] DNS [It] should provide DNS
Ran 24 of 7000 Specs in 101.5 seconds
FAIL! -- 22 Passed | 2 Failed | 0 Pending | 6976 Skipped
  [FAIL] [sig-network] Services [It] should serve a basic endpoint
`)
	if len(summary) != 2 || !strings.HasPrefix(summary[0], "Ran 24 of") || len(failed) != 2 || !strings.HasPrefix(failed[0], "[FAIL] [sig-network] Services") {
		t.Errorf("summary %q, failed %q", summary, failed)
	}
}

func TestCasesAreChosen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cases")
	if err := os.WriteFile(path, []byte("[sig-network] a [Conformance]\n\n[sig-node] b [Serial]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readCases(path, regexp.MustCompile(`^\[sig-network\]`))
	if err != nil || !slices.Equal(got, []string{"[sig-network] a [Conformance]"}) || wantsToBeAlone(got[0]) || !wantsToBeAlone("[sig-node] b [Serial]") {
		t.Errorf("%q %v", got, err)
	}
	if _, err := readCases(path, regexp.MustCompile("nothing like it")); err == nil {
		t.Error("no case at all is taken")
	}
	if _, err := parse([]string{"-nodes=0", "-cases=" + path, "-balsa=/nowhere"}); err == nil || !strings.Contains(err.Error(), "-nodes 0") || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("faults are told as %v", err)
	}
}
