package member

import (
	"errors"
	"testing"
)

func TestTheTableAdmitsOneLiveMemberPerNameAndIdentity(t *testing.T) {
	named := func(n int, name string) Meta { m := serverMeta(n); m.Name = name; return m }
	tab := newTable()
	tab.alive(named(1, "a"), "10.0.0.1:1")
	for what, c := range map[string]struct {
		meta Meta
		addr string
		want error
	}{
		"itself":                             {named(1, "a"), "10.0.0.1:1", nil},
		"itself elsewhere":                   {named(1, "a"), "10.0.0.2:1", nil},
		"another of its name":                {named(2, "a"), "10.0.0.2:1", ErrNameTaken},
		"another of its name in its place":   {named(2, "a"), "10.0.0.1:1", nil},
		"its identity under another name":    {named(1, "b"), "10.0.0.2:1", ErrNameTaken},
		"another":                            {named(2, "b"), "10.0.0.2:1", nil},
		"another of its name, at other port": {named(2, "a"), "10.0.0.1:2", ErrNameTaken},
	} {
		if err := tab.admit(c.meta, c.addr); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
	}
	tab.gone("a")
	if err := tab.admit(named(2, "a"), "10.0.0.2:1"); err != nil {
		t.Errorf("the name of one that failed: %v", err)
	}
}
