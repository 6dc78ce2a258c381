package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/balsahq/balsa/raftstore/diskfile"
	"github.com/balsahq/balsa/raftstore/errdefs"
	"github.com/balsahq/balsa/raftstore/mvcc"
)

// Spool is an encoded state on its way into Raft. Close removes it.
type Spool struct {
	io.Reader
	Size int64
	file *os.File // nil in memory
}

// NewSpool encodes r as the state after entry number index of the given term, to a nameless file in dir, or in memory when dir
// is empty.
func NewSpool(dir string, r *mvcc.Root, index, term uint64) (*Spool, error) {
	if dir == "" {
		var b bytes.Buffer
		_, err := mvcc.WriteSnapshotAt(&b, r, index, term)
		return &Spool{Reader: &b, Size: int64(b.Len())}, err
	}
	f, err := os.CreateTemp(dir, "restore-*.tmp")
	if err != nil {
		return nil, diskfile.Error(dir, err)
	}
	err = os.Remove(f.Name())
	var info mvcc.SnapshotInfo
	if err == nil {
		info, err = mvcc.WriteSnapshotAt(f, r, index, term)
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close()
		if errors.Is(err, errdefs.ErrTooLarge) {
			return nil, err
		}
		return nil, fmt.Errorf("restore: %w", diskfile.Error(dir, err))
	}
	return &Spool{Reader: f, Size: info.Bytes, file: f}, nil
}

// Close implements io.Closer.
func (s *Spool) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// Writer returns w with every Write refused after the end of ctx, so that a long write ends with it.
func Writer(ctx context.Context, w io.Writer) io.Writer { return &contextWriter{ctx, w} }

type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (u *contextWriter) Write(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.w.Write(p)
}

// Reader returns r with every Read refused after the end of ctx.
func Reader(ctx context.Context, r io.Reader) io.Reader { return &contextReader{ctx, r} }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (u *contextReader) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
