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

// openMembership returns the membership of this server. A first start joins the cluster
// of --join, or creates one; later starts read the saved record. The cluster's
// settings are put into cfg.
func openMembership(ctx context.Context, cfg *config.Server, address string, log *slog.Logger) (*membership.Record, error) {
	r, err := join.Load(cfg.ServerDir())
	switch {
	case err == nil:
		if len(cfg.Join) > 0 {
			log.Info("this server is a member already and ignores --join", "cluster", r.ClusterID)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	default:
		if r, err = joinOrCreate(ctx, cfg, address, log); err != nil {
			return nil, err
		}
	}
	return membership.New(cfg.ServerDir(), r), membership.Agree(&cfg.Cluster, r.Settings)
}

// joinOrCreate makes this server a member at its first start. When the store exists
// already, because an earlier version of the program has kept no record of its
// membership, the identity is the store's.
func joinOrCreate(ctx context.Context, cfg *config.Server, address string, log *slog.Logger) (*join.Result, error) {
	old, err := raftstore.ReadIdentity(cfg.StoreDir())
	if err == nil {
		return &join.Result{ClusterID: old.ClusterID, Generation: old.Generation, ServerID: old.ServerID, Name: cfg.NodeName, Settings: membership.Settings(&cfg.Cluster)}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := checkObjectsPresent(cfg); err != nil {
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

// checkObjectsPresent returns an error when this server has had objects and its store is empty now.
func checkObjectsPresent(cfg *config.Server) error {
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
