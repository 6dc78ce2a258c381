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

// ErrOtherIdentity means that the directory holds keys of another cluster. Nothing was changed.
var ErrOtherIdentity = errors.New("the directory holds the keys of another cluster")

// sharedFiles are the files that all servers of a cluster share. Keys of leaf certificates never leave their machine.
var sharedFiles = []string{"ca.pem", "front-proxy-ca.pem", "service-account.key"}

// EncryptionFile is the configuration with which all servers encrypt objects at rest, where the cluster has made one. The
// administrator replaces the key in it.
const EncryptionFile = "encryption.yaml"

// optionalFiles are files that not every cluster has, in their order in a bundle. Their content may change during the life
// of the cluster.
var optionalFiles = []string{EncryptionFile, TrustFile}

const (
	bundleMagic   = "balsa-keys\x00\x01" // the last byte is the version
	maxBundleFile = 64 << 10
	// MaxBundle bounds the size of a bundle, in bytes.
	MaxBundle = 256 << 10
	// pendingBundle is a bundle whose files are being written; Open finishes it after a crash.
	pendingBundle = ".bundle"
)

// Bundle returns the keys that a new server needs to be a full member: both CAs with their keys, the service-account key
// and the existing optionalFiles. It is the cluster's most sensitive secret: it is sent only over mutually authenticated
// TLS, and stored only encrypted.
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
		return nil, err // a file was changed by another program
	}
	return b.Bytes(), nil
}

// CheckBundle returns the pins of the CAs that a bundle trusts, the signing CA first. The error is ErrDamaged if data is
// not a complete bundle.
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

// decodeBundle splits a bundle into files and parses them.
func decodeBundle(data []byte) (map[string][]byte, error) {
	files, err := splitBundle(data)
	if err != nil {
		return nil, err
	}
	return files, checkShared(files)
}

// splitBundle returns the files of a bundle: each of sharedFiles exactly once, and any of optionalFiles.
func splitBundle(data []byte) (map[string][]byte, error) {
	bad := func(format string, args ...any) (map[string][]byte, error) {
		return nil, fmt.Errorf("pki: bundle: "+format+": %w", append(args, ErrDamaged)...)
	}
	if len(data) > MaxBundle || len(data) < len(bundleMagic)+sha256.Size {
		return bad("%d bytes is no valid size", len(data))
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
			return bad("file %s is missing or not in its place", want)
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

// nameOf returns the first bytes of a file's entry in a bundle: the length of the name and the name.
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

// WriteBundle writes the files of a bundle to dir, before Open. If one of sharedFiles exists with other content, it returns
// ErrOtherIdentity and writes nothing; optionalFiles are replaced. After a crash in the middle, Open or another WriteBundle
// finishes the work.
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

// finishBundle completes an interrupted WriteBundle, if there is one.
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
