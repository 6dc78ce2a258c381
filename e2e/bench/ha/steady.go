package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/balsahq/balsa/e2e/lan"
	"github.com/balsahq/balsa/e2e/quorum"
)

// slowWrites is the limit of a server's disk syncs a second in measureSteady.
const slowWrites = 100

// measureSteady loads all CPUs twice over, slows the disks and writes, and counts elections. There should be none,
// because every server lives.
func measureSteady(ctx context.Context, b *bench) error {
	for _, s := range b.systems {
		b.progress("steady, %s, for %s", s.name, b.steady)
		if err := b.keepSteady(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (b *bench) keepSteady(ctx context.Context, s *system) (err error) {
	_, clients, err := b.settled(ctx, s)
	if err != nil {
		return err
	}
	defer closeAll(clients)
	before, err := term(ctx, s)
	if err != nil {
		return err
	}
	for _, m := range s.Net.Machines {
		if err := m.SlowDisk(slowWrites); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.SlowDisk(0)) }()
	}
	for i := range 2 * runtime.NumCPU() {
		burner, err := s.Net.Client.Start(lan.Program{Path: "sh", Args: []string{"-c", "while :; do :; done"}, Log: filepath.Join(s.Net.Client.Dir, fmt.Sprintf("burner-%d.log", i))})
		if err != nil {
			return err
		}
		defer burner.Kill9()
	}
	writing, stop := context.WithTimeout(ctx, b.steady)
	defer stop()
	w := &writer{clients: clients, name: "steady"}
	began := time.Now()
	var joined sync.WaitGroup
	joined.Go(func() { w.write(writing) })
	quorum.Pause(ctx, b.steady)
	longest, _ := w.gap(began)
	joined.Wait()
	after, err := term(ctx, s)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("overloaded for %s, %d syncs/s: ", b.steady, slowWrites)
	b.add(s, what+"false elections", "", "0", float64(after-before))
	b.add(s, what+"longest gap in writes", "s", "", longest.Seconds())
	return ctx.Err()
}

// term returns the highest Raft term that a server reports.
func term(ctx context.Context, s *system) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	highest := uint64(0)
	for i := range s.Size() {
		client, err := s.Client(s.Endpoint(i))
		if err != nil {
			return 0, err
		}
		status, err := client.Status(ctx, s.Endpoint(i))
		client.Close()
		if err != nil {
			return 0, err
		}
		highest = max(highest, status.RaftTerm)
	}
	return highest, nil
}
