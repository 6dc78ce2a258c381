package corpus

import (
	"encoding/gob"
	"errors"
	"fmt"
	"os"

	"github.com/klauspost/compress/zstd"
)

// window is the distance in bytes within which the compression finds repetitions. It is large because many answers are
// alike.
const window = 128 << 20

// Save writes v, a value of slices, strings and numbers, in compressed form. Equal values give equal bytes.
func Save(path string, v any) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	z, err := zstd.NewWriter(f, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithWindowSize(window), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return err
	}
	if err := gob.NewEncoder(z).Encode(v); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return z.Close()
}

// Load reads the output of Save into v, a pointer.
func Load(path string, v any) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	z, err := zstd.NewReader(f, zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return err
	}
	defer z.Close()
	if err := gob.NewDecoder(z).Decode(v); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
