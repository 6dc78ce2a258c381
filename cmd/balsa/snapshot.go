package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/cmd/balsa/daemon/loglevel"
	"github.com/balsahq/balsa/cmd/balsa/daemon/process"
	"github.com/balsahq/balsa/control/cluster"
	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/backup"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/control/cluster/join"
	"github.com/balsahq/balsa/raftstore"
)

func newSnapshotCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "snapshot", Short: "Save and restore the state of the cluster"}
	cmd.AddCommand(newSnapshotSaveCommand(), newSnapshotRestoreCommand(), newSnapshotListCommand(), newSnapshotVerifyCommand(), newSnapshotKeyCommand())
	return cmd
}

func newSnapshotSaveCommand() *cobra.Command {
	c := newClusterClient()
	cmd := &cobra.Command{
		Use:   "save FILE",
		Short: "Save the state of the running cluster; - is standard output",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "-" {
				return saveSnapshot(cmd.Context(), c, cmd.OutOrStdout())
			}
			return saveSnapshotFile(cmd.Context(), c, args[0], cmd.OutOrStdout())
		},
	}
	c.bind(cmd.Flags())
	return cmd
}

// saveSnapshot writes a snapshot to w. Once bytes have been written, it does not try a second server.
func saveSnapshot(ctx context.Context, c *clusterClient, w io.Writer) error {
	var begun error
	return c.callWithin(ctx, 0, false, func(ctx context.Context, cc clusterpb.ClusterClient) error {
		if begun != nil {
			return fmt.Errorf("the snapshot is incomplete: %w", begun)
		}
		stream, err := cc.SnapshotSave(ctx, &clusterpb.SnapshotSaveRequest{})
		for err == nil {
			var chunk *clusterpb.SnapshotChunk
			if chunk, err = stream.Recv(); err == nil {
				begun = errors.New("some of it was written")
				if _, werr := w.Write(chunk.Data); werr != nil {
					return werr
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if begun != nil {
			begun = err
		}
		return err
	})
}

// saveSnapshotFile saves a snapshot as the file at path. The file gets its name after it
// is synced to disk and has been verified.
func saveSnapshotFile(ctx context.Context, c *clusterClient, path string, say io.Writer) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".balsa-*")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // fails after the rename below
	defer file.Close()
	out := bufio.NewWriterSize(file, 1<<20)
	if err := saveSnapshot(ctx, c, out); err != nil {
		return err
	}
	if err := errors.Join(out.Flush(), file.Sync()); err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	_, held, err := verifySnapshot(file, nil) // without the key, which this machine may not have: checksums only
	if err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	_, err = fmt.Fprintf(say, "%s: revision %d, %d keys\n", path, held.Revision, held.Keys)
	return err
}

func verifySnapshot(r io.Reader, key *archive.Key) (archive.Header, archive.Trailer, error) {
	return archive.Verify(r, key, func(r io.Reader) error {
		_, err := raftstore.VerifySnapshot(r)
		return err
	})
}

func newSnapshotRestoreCommand() *cobra.Command {
	c, foreign, key, keyFile, name := newClusterClient(), false, "", "", config.DefaultNode().NodeName
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Restore a snapshot into the running cluster, or create a cluster of it on an empty machine",
		Long: `Restores a snapshot into the running cluster. All servers follow by themselves. Members,
join tokens and gossip keys stay as they are now.

With --recovery-key or --recovery-key-file no cluster has to run: this machine, whose
data directory must be empty, becomes the first server of the saved cluster, with that
cluster's keys. Start it with ` + "`balsa server`" + `, and let other machines join.

A snapshot is encrypted with the recovery key of its cluster, which the cluster's servers
have. With --foreign a snapshot of another cluster is restored into this running one;
--recovery-key or --recovery-key-file is then the other cluster's.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			how := cluster.Restoring{Foreign: foreign}
			if key != "" || keyFile != "" {
				opens, err := recoveryKey(key, keyFile)
				if err != nil {
					return err
				}
				if !foreign {
					return rebuild(cmd, join.RebuildConfig{Archive: file, Key: opens, Name: name}, &c.paths)
				}
				how.Key = &opens
			}
			return c.callWithin(cmd.Context(), 0, false, func(ctx context.Context, cc clusterpb.ClusterClient) error {
				answer, err := cluster.SendArchive(ctx, cc, file, how)
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored: %d keys, the revision is now %d\n", answer.Keys, answer.Revision)
				return err
			})
		},
	}
	c.bind(cmd.Flags())
	cmd.Flags().BoolVar(&foreign, "foreign", foreign, "also when the snapshot is of another cluster")
	cmd.Flags().StringVar(&key, "recovery-key", key, "key that `balsa snapshot key` printed: creates a cluster on this machine or, with --foreign, opens the snapshot")
	cmd.Flags().StringVar(&keyFile, "recovery-key-file", keyFile, "file with the recovery key, instead of --recovery-key")
	cmd.Flags().StringVar(&name, "node-name", name, "name of this machine's Node object, with a recovery key")
	return cmd
}

// recoveryKey returns the key in the file at path or, without a path, the one in text.
func recoveryKey(text, path string) (archive.Key, error) {
	if path != "" {
		return archive.OpenKeyFile(path, false)
	}
	return archive.ParseKey(text)
}

// rebuild makes this machine the first server of the cluster that an archive holds.
func rebuild(cmd *cobra.Command, from join.RebuildConfig, paths *config.Paths) error {
	if running := process.RunningPID(paths.PIDFile()); running != 0 {
		return fmt.Errorf("balsa runs on this machine (process %d): stop it first", running)
	}
	from.Dir, from.StoreDir, from.Logger = paths.ServerDir(), paths.StoreDir(), process.NewLogger(loglevel.At(slog.LevelWarn))
	r, err := join.Rebuild(cmd.Context(), from)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "cluster %s is in %s, as generation %d: start it with `balsa server`\n", r.ClusterID, paths.ServerDir(), r.Generation)
	return err
}

func newSnapshotListCommand() *cobra.Command {
	cfg := config.DefaultPaths()
	cmd := &cobra.Command{
		Use:   "ls [DIR]",
		Short: "List the snapshots that this machine has saved on schedule",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := cfg.DefaultSnapshotDir()
			if len(args) == 1 {
				dir = args[0]
			}
			files, err := backup.List(dir)
			if err != nil {
				return err
			}
			return printSnapshots(cmd.OutOrStdout(), files)
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	return cmd
}

func printSnapshots(w io.Writer, files []backup.File) error {
	out := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(out, "FILE\tSAVED\tREVISION\tKEYS\tBYTES\tBY\tVERSION")
	for _, f := range files {
		if f.Err != nil {
			fmt.Fprintf(out, "%s\t-\t-\t-\t%d\t-\t%v\n", f.Path, f.Size, f.Err)
			continue
		}
		fmt.Fprintf(out, "%s\t%s\t%d\t%d\t%d\t%s\t%s\n", f.Path, f.Header.Created.Local().Format(time.DateTime), f.Trailer.Revision, f.Trailer.Keys, f.Size, f.Header.Server, f.Header.Version)
	}
	return out.Flush()
}

func newSnapshotVerifyCommand() *cobra.Command {
	cfg, keyFile := config.DefaultPaths(), ""
	cmd := &cobra.Command{
		Use:   "verify FILE",
		Short: "Read a snapshot to its end and check every byte",
		Long: `Reads a snapshot to its end and checks every byte. On a server of its cluster, or with
--recovery-key-file, it also decrypts the content and checks it; without a key it checks
the checksums only.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := verifyingKey(&cfg, keyFile)
			if err != nil {
				return err
			}
			file, err := os.Open(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			header, held, err := verifySnapshot(bufio.NewReaderSize(file, 1<<20), key)
			if err != nil {
				return err
			}
			state := "whole"
			if key == nil {
				state = "whole by its checksums (not decrypted: there is no recovery key on this machine)"
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: cluster %s, revision %d, %d keys, saved %s by %s\n", state, header.ClusterID, held.Revision, held.Keys, header.Created.Local().Format(time.DateTime), header.Server)
			return err
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&keyFile, "recovery-key-file", keyFile, "recovery key of the snapshot's cluster (default: this server's)")
	return cmd
}

// verifyingKey returns the recovery key in file or, without a file, this server's key. It
// returns nil on a machine that is no server.
func verifyingKey(cfg *config.Paths, file string) (*archive.Key, error) {
	path := cmp.Or(file, join.RecoveryKeyFile(cfg.ServerDir()))
	key, err := archive.OpenKeyFile(path, false)
	if file == "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		return nil, nil
	}
	return &key, err
}

func newSnapshotKeyCommand() *cobra.Command {
	cfg := config.DefaultPaths()
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Print the recovery key, which decrypts every snapshot of this cluster: keep it in another place",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			key, err := archive.OpenKeyFile(join.RecoveryKeyFile(cfg.ServerDir()), false)
			if errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("no server has run in %s: run this on a server of the cluster", cfg.DataDir)
			}
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), key.Text())
			return err
		},
	}
	bindPaths(cmd.Flags(), &cfg)
	return cmd
}
