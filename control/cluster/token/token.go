// Package token owns the form of join tokens:
//
//	balsa1.s.0f3c…(32 hex).a1b2c3d4.9e8d…(32 hex)
//	       │ │             │        └ secret, 128 random bits
//	       │ │             └ name of the token, public
//	       │ └ pin: the first 32 hex digits of the SHA-256 of the cluster's CA
//	       └ role: s for a server, a for an agent
//
// Whoever holds one knows which cluster it is before a byte of the secret leaves his machine. It has neither
// goroutines nor locks.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// ErrForm: the text is not a join token. No error of this package repeats the text.
var ErrForm = errors.New("not a join token: it looks like balsa1.s.PIN.ID.SECRET; make one with `balsa token create` on a server")

const (
	prefix    = "balsa1"
	pinLen    = 32
	idLen     = 8
	secretLen = 32
	// MaxLength is the length of a token, in bytes: all have the same.
	MaxLength = len(prefix) + 1 + 1 + 1 + pinLen + 1 + idLen + 1 + secretLen
)

// Token is a join token taken apart. Printing or logging one shows no secret; Text does.
type Token struct {
	Server bool   // for a server; else for an agent
	Pin    string // of the cluster's CA
	ID     string
	secret string
}

// New makes a token for a cluster.
func New(server bool, pin string) (Token, error) {
	t := Token{Server: server, Pin: pin, ID: random(idLen), secret: random(secretLen)}
	if !isHex(pin, pinLen) {
		return Token{}, fmt.Errorf("pin %q: want %d hex digits", pin, pinLen)
	}
	return t, nil
}

func random(digits int) string {
	b := make([]byte, digits/2)
	_, _ = rand.Read(b) // never fails: crypto/rand aborts the program instead
	return hex.EncodeToString(b)
}

// Parse takes a token's text apart; white space around it is ignored.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := strings.Split(text, ".")
	if len(text) != MaxLength || len(parts) != 5 || parts[0] != prefix || parts[1] != "s" && parts[1] != "a" {
		return Token{}, ErrForm
	}
	if !isHex(parts[2], pinLen) || !isHex(parts[3], idLen) || !isHex(parts[4], secretLen) {
		return Token{}, ErrForm
	}
	return Token{Server: parts[1] == "s", Pin: parts[2], ID: parts[3], secret: parts[4]}, nil
}

func isHex(s string, n int) bool {
	if len(s) != n {
		return false
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// IsID reports whether s has the form of a token's ID.
func IsID(s string) bool { return isHex(s, idLen) }

// Text is the whole token, with its secret.
func (t Token) Text() string { return t.public() + "." + t.secret }

// String leaves the secret out.
func (t Token) String() string { return t.public() + ".…" }

// GoString leaves the secret out of %#v.
func (t Token) GoString() string { return t.String() }

// LogValue implements slog.LogValuer without the secret.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

func (t Token) public() string {
	role := "a"
	if t.Server {
		role = "s"
	}
	return strings.Join([]string{prefix, role, t.Pin, t.ID}, ".")
}

// Hash is what a cluster keeps of the secret. 128 random bits need no salt and no slow hash.
func (t Token) Hash() string {
	sum := sha256.Sum256([]byte(t.ID + "." + t.secret))
	return hex.EncodeToString(sum[:])
}

// Matches compares with a kept hash in constant time.
func (t Token) Matches(hash string) bool {
	return subtle.ConstantTimeCompare([]byte(t.Hash()), []byte(hash)) == 1
}
