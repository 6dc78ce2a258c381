package member

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	keySize = 32 // AES-256
	maxKeys = 4  // a rotation needs two at once; Meta carries a fingerprint of each
)

// ErrKey is wrapped by every refusal to change the gossip keys.
var ErrKey = errors.New("member: gossip key")

// KeyID is a fingerprint of a gossip key. It identifies the key and reveals nothing about it.
type KeyID [8]byte

// Fingerprint returns the KeyID of a key.
func Fingerprint(key []byte) KeyID {
	sum := sha256.Sum256(append([]byte("balsa gossip key\x00"), key...))
	return KeyID(sum[:8])
}

func (k KeyID) String() string { return hex.EncodeToString(k[:]) }

// AddKey makes this member accept messages that are encrypted with key.
func (g *Gossip) AddKey(key []byte) error {
	if len(key) != keySize {
		return fmt.Errorf("%w: %d bytes, want %d", ErrKey, len(key), keySize)
	}
	return g.changeKeys(func(keys [][]byte) ([][]byte, error) {
		if !containsKey(keys, key) {
			keys = append(keys, slices.Clone(key))
		}
		return keys, nil
	})
}

// UseKey makes this member encrypt with a key that was added before.
func (g *Gossip) UseKey(key []byte) error {
	return g.changeKeys(func(keys [][]byte) ([][]byte, error) {
		if !containsKey(keys, key) {
			return nil, fmt.Errorf("%w %s is to be used but was not added", ErrKey, Fingerprint(key))
		}
		return append([][]byte{slices.Clone(key)}, withoutKey(keys, key)...), nil
	})
}

// RemoveKey makes this member refuse messages that are encrypted with key. ErrKey for the key it encrypts with.
func (g *Gossip) RemoveKey(key []byte) error {
	return g.changeKeys(func(keys [][]byte) ([][]byte, error) {
		if len(keys) > 0 && string(keys[0]) == string(key) {
			return nil, fmt.Errorf("%w %s is in use", ErrKey, Fingerprint(key))
		}
		return withoutKey(keys, key), nil
	})
}

// Rekey replaces the keys by all, and encrypts with primary, which need not be in all. Members without a common key lose contact, so a
// rotation takes the steps of PlanRotation.
func (g *Gossip) Rekey(primary []byte, all [][]byte) error {
	want := append([][]byte{primary}, withoutKey(all, primary)...)
	for _, k := range want {
		if len(k) != keySize {
			return fmt.Errorf("%w: %d bytes, want %d", ErrKey, len(k), keySize)
		}
	}
	return g.changeKeys(func([][]byte) ([][]byte, error) { return want, nil })
}

func containsKey(keys [][]byte, key []byte) bool {
	return slices.ContainsFunc(keys, func(k []byte) bool { return string(k) == string(key) })
}

func withoutKey(keys [][]byte, key []byte) [][]byte {
	var out [][]byte
	for _, k := range keys {
		if string(k) != string(key) {
			out = append(out, slices.Clone(k))
		}
	}
	return out
}

// Ring is a step of a rotation: the keys that members accept, and the primary with which they encrypt.
type Ring struct {
	Primary KeyID
	Keys    []KeyID
}

// rotationWait is how long the old key stays for a server that failed, so that it finds the others when it returns.
const rotationWait = time.Hour

// PlanRotation returns the next step from ring to target as the only key, given the keys that the members announce. It is pure. No member
// loses contact on the way: the new key encrypts once every live member knows it, and the old key is removed once every live member
// encrypts with the new one. wait is "" when next is a step to take, or when the rotation is over and next equals ring; otherwise it
// names the member that the rotation waits for.
func PlanRotation(ring Ring, target KeyID, members []Member, now time.Time) (next Ring, wait string) {
	next = Ring{Primary: ring.Primary, Keys: slices.Clone(ring.Keys)}
	if !slices.Contains(ring.Keys, target) {
		next.Keys = append(next.Keys, target)
		return next, ""
	}
	for _, m := range members {
		if m.State == StateAlive && !slices.Contains(m.Keys, target) {
			return next, fmt.Sprintf("%s does not know the new key yet", m.Name)
		}
	}
	if ring.Primary != target {
		next.Primary = target
		return next, ""
	}
	for _, m := range members {
		switch {
		case len(ring.Keys) == 1:
		case m.State == StateAlive && m.Keys[0] != target:
			return next, fmt.Sprintf("%s still encrypts with the old key", m.Name)
		case m.State == StateFailed && m.Role == RoleServer && now.Sub(m.Since) < rotationWait:
			return next, fmt.Sprintf("%s is away and may know only the old key", m.Name)
		}
	}
	next.Keys = []KeyID{target}
	return next, ""
}
