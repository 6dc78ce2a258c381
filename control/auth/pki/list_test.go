package pki

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestTheListSaysWhatEachFileHolds(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Config{Dir: dir})
	for name, text := range map[string]string{"bad.pem": "nothing", "recovery.key": "balsa-recovery", "notes.txt": "-"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := List(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Entry{}
	for _, e := range list {
		found[filepath.Base(e.File)] = e
	}
	if len(list) != 10 || len(found) != 10 {
		t.Fatalf("%d entries: %v", len(list), found)
	}
	if e := found["apiserver.pem"]; e.Cert == nil || !e.Cert.Equal(a.Serving().Certificate()) {
		t.Errorf("%+v", e)
	}
	if e := found["service-account.key"]; e.Cert != nil || e.Err != nil {
		t.Errorf("%+v", e)
	}
	if e := found["bad.pem"]; !errors.Is(e.Err, ErrDamaged) {
		t.Errorf("%+v", e)
	}
	day := 24 * time.Hour
	for after, want := range map[time.Duration]State{0: StateValid, 300 * day: StateDue, 400 * day: StateEnded, -3 * day: StateFuture} {
		if got := found["admin.pem"].State(time.Now().Add(after)); got != want {
			t.Errorf("after %v: %s, want %s", after, got, want)
		}
	}
	if got := found["ca.pem"].State(time.Now().Add(9 * 365 * day)); got != StateValid {
		t.Errorf("the CA in nine years: %s", got)
	}
	if none, err := List(filepath.Join(dir, "missing")); err != nil || none != nil {
		t.Errorf("%v, %v", none, err)
	}
}
