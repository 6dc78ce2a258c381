package diskfile

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// PaceBytes is how much is written before it is waited for: what an append to the log finds before it on the disk, about
	// a millisecond's worth.
	PaceBytes = 256 << 10
	// PaceRest bounds the pause after that.
	PaceRest = 20 * time.Millisecond
)

// PacedFile has each write on its way to the disk before it takes the next, and
// leaves the disk to others for as long when there are any.
type PacedFile struct {
	File *os.File
	Size int64 // of what was written, in bytes
	// Applied is how far the log has come, which says whether it is written now; nil: it always is.
	Applied func() uint64
	seen    uint64 // what Applied returned last
}

// Write implements io.Writer.
func (p *PacedFile) Write(b []byte) (int, error) {
	total := 0
	for len(b) > 0 {
		part := b[:min(len(b), PaceBytes)]
		n, err := p.File.Write(part)
		total += n
		if err != nil {
			return total, err
		}
		p.settle(int64(n))
		b = b[n:]
	}
	return total, nil
}

// settle waits for the last n bytes, as far as the file system can.
func (p *PacedFile) settle(n int64) {
	start, fd := time.Now(), int(p.File.Fd())
	const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
	_ = unix.SyncFileRange(fd, p.Size, n, all) // a file system without it syncs in the end
	p.Size += n
	if n == PaceBytes && p.contended() {
		time.Sleep(min(time.Since(start), PaceRest))
	}
}

// contended says whether the log has moved since it was asked last.
func (p *PacedFile) contended() bool {
	if p.Applied == nil {
		return true
	}
	at := p.Applied()
	moved := at != p.seen
	p.seen = at
	return moved
}
