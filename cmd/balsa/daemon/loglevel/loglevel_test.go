package loglevel

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

func TestSettings(t *testing.T) {
	for text, want := range map[string]string{
		"info": "info", "DEBUG": "debug", "warn,leader=debug": "warn,leader=debug",
		"overlay/nft=error,info,overlay=debug": "info,overlay=debug,overlay/nft=error", "leader=debug": "info,leader=debug",
	} {
		s, err := Parse(text)
		if err != nil || s.String() != want {
			t.Errorf("%q is %v, %v; want %s", text, s, err, want)
		}
	}
	for _, text := range []string{"", "loud", "info,debug", "leader=", "=debug", "Leader=debug", strings.Repeat("a=info,", 51) + "info", "a b=info"} {
		if s, err := Parse(text); err == nil && text != strings.Repeat("a=info,", 51)+"info" {
			t.Errorf("%q is taken as %s", text, s)
		}
	}
	s, _ := Parse("info,overlay=debug,overlay/nft=error")
	for component, want := range map[string]slog.Level{
		"overlay": slog.LevelDebug, "overlay/services/rules": slog.LevelDebug, "overlay/nft": slog.LevelError, "overlayx": slog.LevelInfo,
		"": slog.LevelInfo, Libraries: slog.LevelWarn,
	} {
		if got := s.Of(component); got != want {
			t.Errorf("%q logs from %s on, want %s", component, got, want)
		}
	}
}

func TestLinesAreChosenByTheirComponentAndTheLevelsChange(t *testing.T) {
	var out bytes.Buffer
	first, _ := Parse("info")
	levels := New(first)
	log := slog.New(levels.Handler("", slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))).With("node", "n")
	says := func(setting, want string) {
		t.Helper()
		s, err := Parse(setting)
		if err != nil {
			t.Fatal(err)
		}
		levels.Set(s)
		out.Reset()
		log.Debug("fine")
		log.Info("coarse")
		var got []string
		for _, word := range []string{"fine", "coarse"} {
			if strings.Contains(out.String(), word) {
				got = append(got, word)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("with %s the log says %q, want %q", setting, got, want)
		}
	}
	says("info", "coarse")
	says("debug", "fine coarse")
	says("error", "")
	says("error,cmd/balsa/daemon/loglevel=debug", "fine coarse")
	says("info,leader=debug", "coarse")
	says("debug,cmd/balsa=warn", "")
}
