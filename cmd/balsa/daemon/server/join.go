package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/membership"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

// openMembership finds out which cluster this server is of: the one it was of
// before, the one it is told to join, or a new one.
func openMembership(ctx context.Context, cfg *config.Server, address string, log *slog.Logger) (*membership.Record, error) {
	r, err := join.Load(cfg.ServerDir())
	switch {
	case err == nil:
		if len(cfg.Join) > 0 {
			log.Info("this server is a member already; --join is not needed any more", "cluster", r.ClusterID)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		if r, err = beginMembership(ctx, cfg, address, log); err != nil {
			return nil, err
		}
	}
	return membership.New(cfg.ServerDir(), r), membership.Agree(&cfg.Cluster, r.Settings)
}

// beginMembership is a first start, or the first of a program that knows of several
// servers.
func beginMembership(ctx context.Context, cfg *config.Server, address string, log *slog.Logger) (*join.Result, error) {
	old, err := raftstore.ReadIdentity(cfg.StoreDir())
	if err == nil {
		return &join.Result{ClusterID: old.ClusterID, Generation: old.Generation, ServerID: old.ServerID, Name: cfg.NodeName, Settings: membership.Settings(&cfg.Cluster)}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := objectsMissing(cfg); err != nil {
		return nil, err
	}
	if len(cfg.Join) > 0 {
		token, err := cfg.JoinToken()
		if err != nil {
			return nil, err
		}
		log.Info("joining the cluster", "at", cfg.Join)
		return join.Join(ctx, join.Options{
			Addrs: cfg.Join, Token: token, Dir: cfg.ServerDir(), Name: cfg.NodeName, Addresses: []string{address}, Server: true, Version: cfg.Version, Logger: log,
		})
	}
	id, err := join.ServerID(cfg.ServerDir())
	if err != nil {
		return nil, err
	}
	return &join.Result{ClusterID: raftstore.NewID(), Generation: 1, ServerID: id, Name: cfg.NodeName, Settings: membership.Settings(&cfg.Cluster)}, nil
}

// objectsMissing refuses a start on an empty store where there was one.
func objectsMissing(cfg *config.Server) error {
	if _, err := os.Stat(cfg.ClusterIDFile()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	if entries, err := os.ReadDir(cfg.StoreDir()); len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist)) {
		return fmt.Errorf("the objects of this cluster are missing: %s is empty; put them back, or remove %s to begin with an empty cluster", cfg.StoreDir(), cfg.ServerDir())
	}
	return nil
}
