package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/balsahq/balsa/raftstore"
)

// openStore opens the cluster's objects. Beside them lies a file with the
// cluster's identity: it refuses objects of another cluster, whose certificates
// and keys these are not, and it refuses to begin anew where objects were.
func openStore(cfg *config, log *slog.Logger) (*raftstore.Store, error) {
	dir := filepath.Join(cfg.serverDir(), "raft")
	idFile := filepath.Join(cfg.serverDir(), "cluster-id")
	raw, err := os.ReadFile(idFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	id := strings.TrimSpace(string(raw))
	if id != "" {
		if entries, err := os.ReadDir(dir); len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist)) {
			return nil, fmt.Errorf("the objects of this cluster are missing: %s is empty; put them back, or remove %s to begin with an empty cluster", dir, cfg.serverDir())
		}
	}
	store, err := raftstore.Open(raftstore.Config{Dir: dir, ClusterID: id, Logger: log})
	if err != nil || id != "" {
		return store, err
	}
	if err := os.WriteFile(idFile, []byte(store.ClusterID()+"\n"), 0o600); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	return store, nil
}
