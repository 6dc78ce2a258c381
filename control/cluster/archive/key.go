package archive

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/balsahq/balsa/control/atomicfile"
)

// Errors of keys.
var (
	// ErrKeyForm: the text is not a recovery key. The text is not repeated.
	ErrKeyForm = errors.New("not a recovery key: it looks like balsa-recovery-1-… and is printed by `balsa snapshot key`")
	// ErrWrongKey: the key is another cluster's, or the keys in the file are damaged.
	ErrWrongKey = errors.New("the recovery key does not open this snapshot: it is of another cluster")
)

const (
	keyPrefix = "balsa-recovery-1-"
	keyCheck  = 4 // bytes of checksum, against slips of the pen
)

// Key is the recovery key of a cluster: made with it, the same for all its archives. Printing or logging one shows
// nothing; Text does.
type Key struct{ raw [32]byte }

// NewKey makes a key.
func NewKey() Key {
	var k Key
	_, _ = rand.Read(k.raw[:]) // never fails: crypto/rand aborts the program instead
	return k
}

// KeyOf takes the 32 bytes that Bytes gave.
func KeyOf(raw []byte) (Key, error) {
	var k Key
	if len(raw) != len(k.raw) {
		return k, ErrKeyForm
	}
	copy(k.raw[:], raw)
	return k, nil
}

// Bytes are the key itself.
func (k Key) Bytes() []byte { return k.raw[:] }

// Text is the key for people: hex, with a checksum.
func (k Key) Text() string {
	sum := sha256.Sum256(k.raw[:])
	return keyPrefix + hex.EncodeToString(k.raw[:]) + hex.EncodeToString(sum[:keyCheck])
}

// String shows nothing of the key.
func (k Key) String() string { return keyPrefix + "…" }

// GoString shows nothing of the key.
func (k Key) GoString() string { return k.String() }

// LogValue implements slog.LogValuer.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// ParseKey reads what Text wrote; white space around it is ignored.
func ParseKey(text string) (Key, error) {
	digits, ok := strings.CutPrefix(strings.TrimSpace(text), keyPrefix)
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) != 32+keyCheck {
		return Key{}, ErrKeyForm
	}
	k, err := KeyOf(raw[:32])
	if err != nil || k.Text() != keyPrefix+digits {
		return Key{}, ErrKeyForm
	}
	return k, nil
}

// OpenKeyFile reads the key in path; with create, one that is not there is made, mode 0600.
func OpenKeyFile(path string, create bool) (Key, error) {
	raw, err := os.ReadFile(path)
	if err == nil {
		k, err := ParseKey(string(raw))
		if err != nil {
			return k, fmt.Errorf("%s: %w", path, err)
		}
		return k, nil
	}
	if !errors.Is(err, os.ErrNotExist) || !create {
		return Key{}, err
	}
	k := NewKey()
	return k, WriteKeyFile(path, k)
}

// WriteKeyFile writes the key to path, atomically and durably, mode 0600.
func WriteKeyFile(path string, k Key) error { return atomicfile.Write(path, []byte(k.Text()+"\n")) }

func (k Key) aead() (cipher.AEAD, error) {
	block, err := aes.NewCipher(k.raw[:])
	if err != nil {
		return nil, err
	}
	return cipher.NewGCMWithRandomNonce(block)
}

// Seal encrypts the cluster's keys, bound to the cluster's ID.
func (k Key) Seal(clusterID string, keys []byte) ([]byte, error) {
	a, err := k.aead()
	if err != nil {
		return nil, err
	}
	return a.Seal(nil, nil, keys, []byte("balsa archive "+clusterID)), nil
}

// Open decrypts what Seal made: ErrWrongKey when it is not this key's or not this cluster's.
func (k Key) Open(clusterID string, sealed []byte) ([]byte, error) {
	a, err := k.aead()
	if err != nil {
		return nil, err
	}
	keys, err := a.Open(nil, nil, sealed, []byte("balsa archive "+clusterID))
	if err != nil {
		return nil, ErrWrongKey
	}
	return keys, nil
}
