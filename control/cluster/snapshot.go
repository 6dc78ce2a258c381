package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/balsahq/balsa/control/cluster/archive"
	"github.com/balsahq/balsa/control/cluster/clusterpb"
	"github.com/balsahq/balsa/raftstore"
)

const (
	sendChunk = 256 << 10
	maxChunk  = 1 << 20
	spoolName = "restore-*.tmp"
)

// WriteArchive writes an archive of the whole state as this server has applied it, with the cluster's keys in it, all
// encrypted with the recovery key. If it fails, the output is useless.
func (s *Service) WriteArchive(ctx context.Context, w io.Writer) (archive.Trailer, error) {
	var done archive.Trailer
	keys, err := s.cfg.PKI.Bundle()
	if err != nil {
		return done, err
	}
	store := s.cfg.Store
	set := s.cfg.Settings
	header := archive.Header{ClusterID: store.ClusterID(), Generation: store.Generation(), CAPin: s.Pin(), Created: s.cfg.Now().UTC(),
		ServerID: store.ServerID(), Server: s.cfg.Name, Version: s.cfg.Version,
		Settings: map[string]string{"service-cidr": set.ServiceCIDR, "cluster-cidr": set.ClusterCIDR, "cluster-dns": set.ClusterDNS, "cluster-domain": set.ClusterDomain, "gossip-port": strconv.Itoa(set.GossipPort)}}
	err = archive.Write(w, header, s.cfg.RecoveryKey, keys, func(w io.Writer) (archive.Trailer, error) {
		info, err := store.SaveSnapshot(ctx, w)
		done = archive.Trailer{Revision: info.Revision, Keys: info.Keys, Leases: info.Leases}
		return done, err
	})
	return done, err
}

// VerifyArchive reads a whole archive and judges every byte of it.
func (s *Service) VerifyArchive(r io.Reader) (archive.Header, archive.Trailer, error) {
	return verifyArchive(r, s.cfg.RecoveryKey)
}

func verifyArchive(r io.Reader, key archive.Key) (archive.Header, archive.Trailer, error) {
	return archive.Verify(r, &key, func(r io.Reader) error {
		_, err := raftstore.VerifySnapshot(r)
		return err
	})
}

// SnapshotSave implements clusterpb.ClusterServer.
func (s *Service) SnapshotSave(_ *clusterpb.SnapshotSaveRequest, stream clusterpb.Cluster_SnapshotSaveServer) error {
	ctx := stream.Context()
	if _, err := s.authorize(ctx, managers); err != nil {
		return err
	}
	select {
	case s.saves <- struct{}{}:
		defer func() { <-s.saves }()
	default:
		return status.Error(codes.ResourceExhausted, "two snapshots are being saved here already: ask again, or another server")
	}
	if _, err := s.cfg.Store.Barrier(ctx); err != nil { // everything acknowledged so far is in it
		return wire(err)
	}
	out := &chunks{send: func(b []byte) error { return stream.Send(&clusterpb.SnapshotChunk{Data: b}) }}
	if _, err := s.WriteArchive(ctx, out); err != nil {
		return wire(err)
	}
	return wire(out.flush())
}

// chunks collects writes into messages. A message is not changed after it was sent, because gRPC may still read it.
type chunks struct {
	send func([]byte) error
	buf  []byte
}

// Write implements io.Writer.
func (c *chunks) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		if c.buf == nil {
			c.buf = make([]byte, 0, sendChunk)
		}
		take := min(len(p), sendChunk-len(c.buf))
		c.buf, p = append(c.buf, p[:take]...), p[take:]
		if len(c.buf) == sendChunk {
			if err := c.flush(); err != nil {
				return 0, err
			}
		}
	}
	return n, nil
}

func (c *chunks) flush() error {
	b := c.buf
	c.buf = nil
	if len(b) == 0 {
		return nil
	}
	return c.send(b)
}

// SnapshotRestore implements clusterpb.ClusterServer. The archive is spooled and judged where it was sent; only then
// does it go to the leader.
func (s *Service) SnapshotRestore(stream clusterpb.Cluster_SnapshotRestoreServer) error {
	ctx := stream.Context()
	if _, err := s.authorize(ctx, managers); err != nil {
		return err
	}
	select {
	case s.restore <- struct{}{}:
		defer func() { <-s.restore }()
	default:
		return status.Error(codes.ResourceExhausted, "another snapshot is being restored")
	}
	file, how, err := s.spool(stream)
	if err != nil {
		return wire(err)
	}
	defer os.Remove(file.Name())
	defer file.Close()
	if err := s.judge(file, how); err != nil {
		return wire(err)
	}
	answer, err := s.restoreFrom(ctx, file, how)
	if err != nil {
		return wire(err)
	}
	return stream.SendAndClose(answer)
}

// Restoring says of which clusters an archive may be that is restored.
type Restoring struct {
	// Foreign takes one of another cluster.
	Foreign bool
	// Key is that cluster's recovery key; nil is this cluster's.
	Key *archive.Key
}

// keyOf is the recovery key that opens the archive.
func (s *Service) keyOf(how Restoring) archive.Key {
	if how.Key != nil {
		return *how.Key
	}
	return s.cfg.RecoveryKey
}

// spool takes an archive to disk, at most MaxArchive bytes.
func (s *Service) spool(stream clusterpb.Cluster_SnapshotRestoreServer) (_ *os.File, how Restoring, err error) {
	if err := os.MkdirAll(s.cfg.SpoolDir, 0o700); err != nil {
		return nil, how, err
	}
	file, err := os.CreateTemp(s.cfg.SpoolDir, spoolName)
	if err != nil {
		return nil, how, err
	}
	defer func() {
		if err != nil {
			file.Close()
			os.Remove(file.Name())
		}
	}()
	for total, first := int64(0), true; ; first = false {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return file, how, nil
		}
		if err != nil {
			return nil, how, err
		}
		if first {
			how.Foreign = m.Foreign
			if len(m.RecoveryKey) > 0 {
				key, err := archive.KeyOf(m.RecoveryKey)
				if err != nil {
					return nil, how, status.Error(codes.InvalidArgument, err.Error())
				}
				how.Key = &key
			}
		}
		if total += int64(len(m.Data)); total > s.cfg.MaxArchive || len(m.Data) > maxChunk {
			return nil, how, status.Errorf(codes.ResourceExhausted, "an archive has at most %d bytes, a message %d", s.cfg.MaxArchive, maxChunk)
		}
		if _, err := file.Write(m.Data); err != nil {
			return nil, how, status.Errorf(codes.ResourceExhausted, "the archive cannot be kept while it is checked: %v", err)
		}
	}
}

// judge reads all of an archive and refuses a damaged one, and one of another cluster unless it is wanted.
func (s *Service) judge(file *os.File, how Restoring) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	header, _, err := verifyArchive(file, s.keyOf(how))
	own := s.cfg.Store.ClusterID()
	switch foreign := header.ClusterID != own; {
	case foreign && !how.Foreign && header.ClusterID != "" && (err == nil || errors.Is(err, archive.ErrWrongKey)):
		return status.Errorf(codes.FailedPrecondition, "the snapshot is of cluster %s, this is %s: its tokens and certificates would not be valid here; --foreign restores it all the same", short(header.ClusterID), short(own))
	case errors.Is(err, archive.ErrWrongKey) && foreign:
		return status.Errorf(codes.FailedPrecondition, "the snapshot is encrypted with the recovery key of cluster %s: give that with --recovery-key-file beside --foreign", short(header.ClusterID))
	}
	return err
}

func (s *Service) restoreFrom(ctx context.Context, file *os.File, how Restoring) (*clusterpb.SnapshotRestoreResponse, error) {
	_, forwarded := valueFrom(ctx, forwardedBy)
	return tryLeader(ctx, s, forwarded,
		func(ctx context.Context) (*clusterpb.SnapshotRestoreResponse, error) {
			return s.restoreHere(ctx, file, s.keyOf(how))
		},
		func(ctx context.Context, c clusterpb.ClusterClient) (*clusterpb.SnapshotRestoreResponse, error) {
			return SendArchive(ctx, c, file, how)
		})
}

// SendArchive restores a file on whatever cluster c is of.
func SendArchive(ctx context.Context, c clusterpb.ClusterClient, file io.ReadSeeker, how Restoring) (*clusterpb.SnapshotRestoreResponse, error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.SnapshotRestore(ctx)
	if err != nil {
		return nil, err
	}
	first := true
	out := &chunks{send: func(b []byte) error {
		m := &clusterpb.SnapshotRestoreRequest{Data: b, Foreign: how.Foreign}
		if first && how.Key != nil {
			m.RecoveryKey = how.Key.Bytes()
		}
		first = false
		return stream.Send(m)
	}}
	_, err = io.Copy(out, file)
	if err == nil {
		err = out.flush()
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: the answer says why
		return nil, err
	}
	return stream.CloseAndRecv()
}

func (s *Service) restoreHere(ctx context.Context, file *os.File, key archive.Key) (*clusterpb.SnapshotRestoreResponse, error) {
	store := s.cfg.Store
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	in, err := archive.NewReader(file)
	if err != nil {
		return nil, err
	}
	if err := store.RestoreSnapshot(ctx, in.Open(key), KeptOverRestore()...); err != nil {
		return nil, fmt.Errorf("the snapshot could not be restored: %w", err)
	}
	v, err := store.Barrier(ctx)
	if err != nil {
		return nil, err
	}
	s.cfg.Logger.Info("a snapshot was restored", "from", in.Header().Created, "revision", v.Revision(), "keys", v.Len())
	return &clusterpb.SnapshotRestoreResponse{Revision: v.Revision(), Keys: int64(v.Len())}, nil
}
