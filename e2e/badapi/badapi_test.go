package main

import (
	"context"
	"slices"
	"testing"
	"time"
)

const (
	binary     = "../../bin/balsa"
	mostMemory = 1 << 30 // bytes, the limit of the server's memory under any bomb
	patience   = 90 * time.Second
)

// TestBombsAreRefusedWhileOthersAreServed checks status codes, memory, and that the other client gets answers.
func TestBombsAreRefusedWhileOthersAreServed(t *testing.T) {
	s, err := newTarget(t.Context(), binary)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.fill(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan *observer)
	other := s.client(good)
	defer other.CloseIdleConnections()
	go func() { watched <- watchOver(ctx, s, other, false) }()
	for _, b := range append(append(bodyBombs(), costBombs()...), wireBombs()...) {
		began := time.Now()
		if err := s.forget(); err != nil {
			t.Fatal(err)
		}
		limit, enough := context.WithTimeout(t.Context(), patience)
		count := newTally(b.shots)
		b.attack(limit, s, count)
		enough()
		_, most := s.memory()
		t.Logf("%-40s %v, %d MiB, %v", b.name, count, most>>20, time.Since(began).Round(time.Millisecond))
		for code := range count.codes {
			if len(b.want) > 0 && !slices.Contains(b.want, code) {
				t.Errorf("%s: %v, want %v", b.name, count, b.want)
				break
			}
		}
		if len(b.want) > 0 && len(count.codes) == 0 {
			t.Errorf("%s: no answer: %v", b.name, count)
		}
		if most > mostMemory {
			t.Errorf("%s: the server held %d MiB", b.name, most>>20)
		}
		if err := s.alive(); err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
	}
	cancel()
	o := <-watched
	t.Logf("the other client: %v", o)
	for _, err := range o.faults {
		t.Errorf("the other client: %v", err)
	}
}
