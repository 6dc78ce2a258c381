package token

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

const pin = "00112233445566778899aabbccddeeff"

func TestATokenSurvivesItsText(t *testing.T) {
	for _, server := range []bool{true, false} {
		a, err := New(server, pin)
		if err != nil {
			t.Fatal(err)
		}
		b, err := Parse(" " + a.Text() + "\n")
		if err != nil || a != b || len(a.Text()) != MaxLength || !b.Matches(a.Hash()) {
			t.Fatalf("%v, %v", b, err)
		}
		other, err := New(server, pin)
		if err != nil || other.Matches(a.Hash()) || other.ID == a.ID {
			t.Fatalf("two tokens alike: %v", err)
		}
	}
	if _, err := New(true, "short"); err == nil {
		t.Fatal("a token without a pin")
	}
}

func TestNoPrintingShowsTheSecret(t *testing.T) {
	a, err := New(true, pin)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "token", a)
	fmt.Fprintf(&log, "%v %+v %#v %s %q", a, a, a, a, a)
	_, err = Parse(a.Text() + "0")
	fmt.Fprint(&log, err)
	if strings.Contains(log.String(), a.secret) || strings.Contains(log.String(), a.Hash()) {
		t.Fatal(log.String())
	}
}

func FuzzParse(f *testing.F) {
	f.Add("balsa1.s." + pin + ".a1b2c3d4." + pin)
	f.Add("balsa1.a." + pin + ".a1b2c3d4.")
	f.Add("....")
	f.Fuzz(func(t *testing.T, text string) {
		tok, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrForm) {
				t.Fatal(err)
			}
			return
		}
		if tok.Text() != strings.TrimSpace(text) {
			t.Fatalf("%q became another token", text)
		}
	})
}
