package main

import (
	"context"
	"errors"
	"testing"
)

func TestAnAttackCountsOnlyWhenItIsRefusedAndItsControlWorks(t *testing.T) {
	works := func(context.Context) error { return nil }
	refused := func(context.Context) error { return errRefused }
	fails := func(context.Context) error { return errors.New("connection refused") }
	for what, c := range map[string]struct {
		attack attack
		well   bool
	}{
		"refused, and the control works": {attack{"a", refused, works}, true},
		"it succeeds":                    {attack{"a", works, works}, false},
		"it fails for another reason":    {attack{"a", fails, works}, false},
		"its control is refused, too":    {attack{"a", refused, refused}, false},
	} {
		if _, fault := judge(t.Context(), c.attack); (fault == "") != c.well {
			t.Errorf("%s: %q", what, fault)
		}
	}
}

func TestMessagesAreReadAsTheyWereWritten(t *testing.T) {
	m := message(1, "name", 4, 2, 1, []byte("other"))
	if got := string(fieldOf(m, 1)); got != "other" || len(repeated(m, 1)) != 2 || number(m, 4) != 2 || fieldOf(m, 9) != nil {
		t.Errorf("%q of %x", got, m)
	}
}
