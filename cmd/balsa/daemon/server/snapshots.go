package server

import (
	"context"
	"log/slog"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/backup"
	"github.com/balsahq/balsa/raftstore"
)

// runSnapshotSchedule saves snapshots on schedule while this server leads, until ctx ends.
func runSnapshotSchedule(ctx context.Context, s config.Snapshots, dir string, service *cluster.Service, store *raftstore.Store, log *slog.Logger) error {
	if s.Every == 0 {
		<-ctx.Done()
		return nil
	}
	return backup.Run(ctx, backup.Config{
		Archiver: service, Dir: dir, Every: s.Every, Keep: s.Keep, Leading: store.Leading, LeaderChanged: store.LeaderChanged, Logger: log,
	})
}
