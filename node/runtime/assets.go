package runtime

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/balsahq/balsa/fault"
)

//go:embed all:assets
var embedded embed.FS

// ErrNoAssets says that this binary was built without its helper programs.
var ErrNoAssets = errors.New("this binary carries no helper programs: build it with `make build`, or name a CRI socket with --container-runtime-endpoint")

// carriedImages is the asset with the images; all others are programs.
const carriedImages = "images/carried.tar"

type asset struct {
	digest string // SHA-256 of the uncompressed bytes, hex
	name   string
}

// manifest reads the list of assets. The second result identifies the set.
func manifest() ([]asset, string, error) {
	raw, err := embedded.ReadFile("assets/MANIFEST")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", ErrNoAssets
	}
	if err != nil {
		return nil, "", err
	}
	var out []asset
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		digest, name, ok := strings.Cut(lines.Text(), " ")
		if !ok {
			return nil, "", fmt.Errorf("assets manifest: malformed line %q", lines.Text())
		}
		out = append(out, asset{digest: digest, name: name})
	}
	sum := sha256.Sum256(raw)
	return out, hex.EncodeToString(sum[:]), lines.Err()
}

func readAsset(a asset) ([]byte, error) {
	compressed, err := embedded.ReadFile("assets/" + a.name + ".zst")
	if err != nil {
		return nil, err
	}
	dec, err := zstd.NewReader(nil)
	if err != nil {
		return nil, err
	}
	defer dec.Close()
	data, err := dec.DecodeAll(compressed, nil)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", a.name, err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != a.digest {
		return nil, fmt.Errorf("unpack %s: the digest differs from the manifest's", a.name)
	}
	return data, nil
}

// LayOut writes the helper programs into dir unless this very set is there
// already. A running program is replaced by rename, never overwritten.
func LayOut(dir string) error {
	assets, id, err := manifest()
	if err != nil {
		return err
	}
	marker := filepath.Join(dir, ".manifest")
	if have, err := os.ReadFile(marker); err == nil && string(have) == id && allPresent(dir, assets) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var group errgroup.Group
	for _, a := range assets {
		if a.name == carriedImages {
			continue
		}
		group.Go(fault.ContainedErr("node/runtime", func() error {
			data, err := readAsset(a)
			if err != nil {
				return err
			}
			return replaceFile(filepath.Join(dir, filepath.Base(a.name)), data, 0o755)
		}))
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return replaceFile(marker, []byte(id), 0o644)
}

func allPresent(dir string, assets []asset) bool {
	for _, a := range assets {
		if a.name == carriedImages {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, filepath.Base(a.name))); err != nil {
			return false
		}
	}
	return true
}

func replaceFile(path string, data []byte, mode fs.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, data, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
