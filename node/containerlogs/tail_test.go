package containerlogs

import (
	"os"
	"path/filepath"
	"testing"
)

func TestLastWordsFromTheLogEndAsTheContainerEndedThem(t *testing.T) {
	const stamp = "2026-01-02T03:04:05.000000000Z stdout "
	for _, tc := range []struct{ name, log, want string }{
		{"a whole line", stamp + "F DONE\n", "DONE\n"},
		{"no newline at the end", stamp + "P DONE\n", "DONE"},
		{"a line in parts", stamp + "P DO\n" + stamp + "F NE\n", "DONE\n"},
		{"lines", stamp + "F a\n" + stamp + "P b\n", "a\nb"},
		{"nothing", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "0.log")
			if err := os.WriteFile(path, []byte(tc.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := Tail(path); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
		})
	}
}
