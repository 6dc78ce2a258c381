package diskfile

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// PaceBytes is how much is written before PacedFile waits until it is on the disk: about a millisecond of writing, which an append to
	// the log may have to wait for.
	PaceBytes = 256 << 10
	// PaceRest bounds the pause after PaceBytes.
	PaceRest = 20 * time.Millisecond
)

// PacedFile waits until each write is on the disk before the next, and pauses for as long while the log is written.
type PacedFile struct {
	File *os.File
	Size int64 // bytes written
	// Applied returns the index of the last applied entry, by which PacedFile notices that the log is written; nil: it always pauses.
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
