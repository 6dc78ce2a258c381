package relay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAKeyIsMadeOnceAndForItsOwnerAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "wireguard.key")
	first, err := LoadKey(path)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadKey(path)
	if err != nil || !again.Equal(first) {
		t.Errorf("another key the second time: %v", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := os.WriteFile(path, []byte("nonsense\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadKey(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("nonsense is a key: %v", err)
	}
}
