package pki

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/balsahq/balsa/control/atomicfile"
)

// ErrOtherIdentity: the directory holds keys of another cluster. Nothing was changed.
var ErrOtherIdentity = errors.New("the directory holds the keys of another cluster")

// What every server of a cluster shares. Leaf keys never leave the machine that made them.
var sharedFiles = []string{"ca.pem", "front-proxy-ca.pem", "service-account.key"}

// EncryptionFile is the configuration with which all servers encrypt objects at rest, where the cluster has made one. The
// administrator replaces the key in it.
const EncryptionFile = "encryption.yaml"

// optionalFiles are those that not every cluster has, in their order in a bundle. They change while the cluster lives.
var optionalFiles = []string{EncryptionFile, TrustFile}

const (
	bundleMagic   = "balsa-keys\x00\x01" // the last byte is the version
	maxBundleFile = 64 << 10
	// MaxBundle is the size of the largest bundle there can be, in bytes.
	MaxBundle = 256 << 10
	// pendingBundle is a bundle whose files are being laid out; Open finishes it.
	pendingBundle = ".bundle"
)

// Bundle is what a new server needs to be a full peer: both CAs with their keys, the service-account key and, where there
// are any, the optionalFiles. It is the cluster's greatest secret: it goes over mutually authenticated TLS, or to a disk sealed.
//
//	magic, version · per file: u16 length, name, u32 length, content · SHA-256 of all before
func (a *Authority) Bundle() ([]byte, error) {
	a.files.Lock()
	defer a.files.Unlock()
	var b bytes.Buffer
	b.WriteString(bundleMagic)
	for _, name := range slices.Concat(sharedFiles, optionalFiles) {
		data, err := os.ReadFile(a.path(name))
		if slices.Contains(optionalFiles, name) && errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("pki: bundle: %w", err)
		}
		head := binary.BigEndian.AppendUint32(nameOf(name), uint32(len(data)))
		b.Write(head)
		b.Write(data)
	}
	sum := sha256.Sum256(b.Bytes())
	b.Write(sum[:])
	if _, err := decodeBundle(b.Bytes()); err != nil {
		return nil, err // somebody changed a file under us
	}
	return b.Bytes(), nil
}

// CheckBundle reports whether data is a whole bundle, ErrDamaged if not, and returns the pins of the CAs that it trusts, the
// one that signs first.
func CheckBundle(data []byte) (pins []string, err error) {
	files, err := decodeBundle(data)
	if err != nil {
		return nil, err
	}
	p, err := parseCA("ca.pem", files["ca.pem"])
	if err != nil {
		return nil, err
	}
	others, err := parseTrustBundle(TrustFile, files[TrustFile])
	if err != nil {
		return nil, err
	}
	pins = []string{Pin(p.cert.Raw)}
	for _, c := range others.trusted {
		pins = append(pins, Pin(c.Raw))
	}
	return pins, nil
}

// decodeBundle takes a bundle apart and reads what is in it.
func decodeBundle(data []byte) (map[string][]byte, error) {
	files, err := splitBundle(data)
	if err != nil {
		return nil, err
	}
	return files, checkShared(files)
}

// splitBundle takes a bundle apart: every file of sharedFiles once, each whole, and any of optionalFiles.
func splitBundle(data []byte) (map[string][]byte, error) {
	bad := func(format string, args ...any) (map[string][]byte, error) {
		return nil, fmt.Errorf("pki: bundle: "+format+": %w", append(args, ErrDamaged)...)
	}
	if len(data) > MaxBundle || len(data) < len(bundleMagic)+sha256.Size {
		return bad("%d bytes cannot be one", len(data))
	}
	body, sum := data[:len(data)-sha256.Size], data[len(data)-sha256.Size:]
	if want := sha256.Sum256(body); !bytes.Equal(sum, want[:]) {
		return bad("its checksum is wrong")
	}
	rest, ok := bytes.CutPrefix(body, []byte(bundleMagic))
	if !ok {
		return bad("unknown kind or version")
	}
	files := map[string][]byte{}
	for _, want := range slices.Concat(sharedFiles, optionalFiles) {
		if optional := slices.Contains(optionalFiles, want); optional && (len(rest) == 0 || !bytes.HasPrefix(rest, nameOf(want))) {
			continue
		}
		if len(rest) < 2 {
			return bad("ends before %s", want)
		}
		n := int(binary.BigEndian.Uint16(rest))
		if rest = rest[2:]; len(rest) < n+4 || string(rest[:n]) != want {
			return bad("%s is not where it belongs", want)
		}
		size := binary.BigEndian.Uint32(rest[n:])
		if rest = rest[n+4:]; size > maxBundleFile || int(size) > len(rest) {
			return bad("%s has a length of %d", want, size)
		}
		files[want], rest = rest[:size], rest[size:]
	}
	if len(rest) != 0 {
		return bad("%d bytes too many", len(rest))
	}
	return files, nil
}

// nameOf is how a file's entry in a bundle begins.
func nameOf(file string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(file))), file...)
}

func checkShared(files map[string][]byte) error {
	for name, data := range files {
		var err error
		switch ext := filepath.Ext(name); {
		case name == TrustFile:
			_, err = parseTrustBundle(name, data)
		case ext == ".key":
			_, err = parseKey(name, data)
		case ext == ".pem":
			_, err = parseCA(name, data)
		}
		if err != nil {
			return fmt.Errorf("pki: bundle: %w", err)
		}
	}
	return nil
}

// WriteBundle lays out a bundle in dir, before Open. A file that is there with the same content stays; one with other
// content is ErrOtherIdentity, and nothing is written, except that optionalFiles are replaced. After a crash in the middle, Open or another WriteBundle
// finishes.
func WriteBundle(dir string, bundle []byte) error {
	files, err := decodeBundle(bundle)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("pki: directory: %w", err)
	}
	for name, data := range files {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && !slices.Contains(optionalFiles, name) && !bytes.Equal(have, data) {
			return fmt.Errorf("pki: %s: %w", filepath.Join(dir, name), ErrOtherIdentity)
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("pki: %w", err)
		}
	}
	if err := atomicfile.WriteContent(filepath.Join(dir, pendingBundle), bundle); err != nil {
		return fmt.Errorf("pki: bundle: %w", err)
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		return fmt.Errorf("pki: bundle: %w", err)
	}
	return finishBundle(dir)
}

// finishBundle lays out what a WriteBundle has begun, if any.
func finishBundle(dir string) error {
	pending := filepath.Join(dir, pendingBundle)
	bundle, err := os.ReadFile(pending)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pki: bundle: %w", err)
	}
	files, err := decodeBundle(bundle)
	if err != nil {
		return fmt.Errorf("%s: %w", pending, err)
	}
	for name, data := range files {
		path := filepath.Join(dir, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, data) {
			continue
		} else if err == nil && !slices.Contains(optionalFiles, name) {
			return fmt.Errorf("pki: %s: %w", path, ErrOtherIdentity)
		}
		if err := atomicfile.WriteContent(path, data); err != nil {
			return fmt.Errorf("pki: bundle: %w", err)
		}
	}
	if err := atomicfile.SyncDir(dir); err != nil {
		return fmt.Errorf("pki: bundle: %w", err)
	}
	if err := os.Remove(pending); err != nil {
		return fmt.Errorf("pki: bundle: %w", err)
	}
	return nil
}
