package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/balsahq/balsa/control/atomicfile"
	"github.com/balsahq/balsa/control/auth/pki"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/raftstore"
)

// ErrNotEmpty: the directory holds a server's data already.
var ErrNotEmpty = errors.New("the data directory holds a server already")

const (
	rebuildMark = "rebuilding" // there while Rebuild is at work
	rebuildTime = time.Minute  // for the new store to lead itself
)

// RebuildConfig says what to make a cluster of again, and where.
type RebuildConfig struct {
	// Archive is a snapshot file, Key the recovery key of its cluster.
	Archive io.ReadSeeker
	Key     archive.Key
	// Dir is a server's directory, StoreDir the one of its store; both hold nothing yet.
	Dir, StoreDir string
	// Name of this machine's node.
	Name   string
	Logger *slog.Logger
}

// Rebuild makes this machine the first server of the archive's cluster, in its next generation: the same keys, so that
// kubeconfigs, agents and tokens of service accounts stay good; the state of the archive; no other servers and no join
// tokens. After a crash in the middle it may be run again. Nothing may run on the directory.
func Rebuild(ctx context.Context, cfg RebuildConfig) (*Result, error) {
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	header, keys, err := unseal(cfg.Archive, cfg.Key)
	if err != nil {
		return nil, err
	}
	if err := cfg.claim(); err != nil {
		return nil, err
	}
	if err := pki.WriteBundle(filepath.Join(cfg.Dir, "tls"), keys); err != nil {
		return nil, err
	}
	if err := archive.WriteKeyFile(RecoveryKeyFile(cfg.Dir), cfg.Key); err != nil {
		return nil, err
	}
	id, err := ServerID(cfg.Dir)
	if err != nil {
		return nil, err
	}
	r := &Result{ClusterID: header.ClusterID, Generation: header.Generation + 1, ServerID: id, Name: cfg.Name, Settings: settingsOf(header)}
	if r.GossipKeys, err = cfg.fill(ctx, r); err != nil {
		return nil, err
	}
	if err := r.Save(cfg.Dir); err != nil {
		return nil, err
	}
	return r, os.Remove(filepath.Join(cfg.Dir, rebuildMark))
}

// unseal checks all of an archive and opens the keys in it.
func unseal(file io.ReadSeeker, key archive.Key) (archive.Header, []byte, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return archive.Header{}, nil, err
	}
	header, _, err := archive.Verify(file, &key, func(r io.Reader) error {
		_, err := raftstore.VerifySnapshot(r)
		return err
	})
	if err != nil {
		return header, nil, err
	}
	in, err := rewind(file)
	if err != nil {
		return header, nil, err
	}
	keys, err := key.Open(header.ClusterID, in.Sealed())
	if err != nil {
		return header, nil, err
	}
	pins, err := pki.CheckBundle(keys)
	if err == nil && !slices.Contains(pins, header.CAPin) {
		err = fmt.Errorf("the keys in the snapshot are not its cluster's: %w", archive.ErrDamaged)
	}
	return header, keys, err
}

func rewind(file io.ReadSeeker) (*archive.Reader, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return archive.NewReader(file)
}

func settingsOf(h archive.Header) cluster.Settings {
	port, _ := strconv.Atoi(h.Settings["gossip-port"]) // 0 is the usual one
	return cluster.Settings{ServiceCIDR: h.Settings["service-cidr"], ClusterCIDR: h.Settings["cluster-cidr"],
		ClusterDNS: h.Settings["cluster-dns"], ClusterDomain: h.Settings["cluster-domain"], GossipPort: port}
}

// claim takes an empty directory, or one that an earlier Rebuild has begun to fill.
func (cfg *RebuildConfig) claim() error {
	mark := filepath.Join(cfg.Dir, rebuildMark)
	if _, err := os.Stat(mark); err == nil {
		return os.RemoveAll(cfg.StoreDir)
	}
	for _, path := range []string{cfg.StoreDir, filepath.Join(cfg.Dir, "tls"), filepath.Join(cfg.Dir, stateFile)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%s: %w: move %s away to begin anew from a snapshot", path, ErrNotEmpty, cfg.Dir)
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return err
	}
	return atomicfile.Write(mark, nil)
}

// fill makes the store of a cluster of one, puts the state into it, and takes out who was a member before.
func (cfg *RebuildConfig) fill(ctx context.Context, r *Result) (gossipKeys [][]byte, err error) {
	store, err := raftstore.Open(raftstore.Config{Dir: cfg.StoreDir, ClusterID: r.ClusterID, ServerID: r.ServerID, Generation: r.Generation, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := awaitLeading(ctx, store); err != nil {
		return nil, err
	}
	in, err := rewind(cfg.Archive)
	if err != nil {
		return nil, err
	}
	if err := store.RestoreSnapshot(ctx, in.Open(cfg.Key)); err != nil {
		return nil, err
	}
	if err := cluster.ForgetMembers(ctx, store); err != nil {
		return nil, err
	}
	ring, err := cluster.EnsureKeyring(ctx, store, time.Now())
	if err != nil {
		return nil, err
	}
	return ring.Keys, nil
}

func awaitLeading(ctx context.Context, store *raftstore.Store) error {
	ctx, cancel := context.WithTimeout(ctx, rebuildTime)
	defer cancel()
	_, err := store.Barrier(ctx) // answers when the store leads itself
	return err
}
