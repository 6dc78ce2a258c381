package pki

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// State is the state of a certificate or key.
type State string

// States, from best to worst.
const (
	StateValid  State = "valid"
	StateDue    State = "due" // at most a third of its life is left: the next hourly check renews it
	StateFuture State = "not valid yet"
	StateEnded  State = "expired"
)

// Entry is one certificate, or one key without a certificate, of a file.
type Entry struct {
	File string
	// Cert is nil for a key, and if the file cannot be read for the reason in Err.
	Cert *x509.Certificate
	Err  error
}

// State returns the state of the entry at the time now.
func (e Entry) State(now time.Time) State {
	switch p := (pair{cert: e.Cert}); {
	case now.After(e.Cert.NotAfter):
		return StateEnded
	case now.Before(e.Cert.NotBefore):
		return StateFuture
	case !e.Cert.IsCA && p.due(now):
		return StateDue
	}
	return StateValid
}

// List returns the certificates and keys of the .pem, .crt and .key files in a directory, in the order of the files' names.
// For a directory that does not exist it returns none.
func List(dir string) ([]Entry, error) {
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pki: %w", err)
	}
	var out []Entry
	for _, f := range files {
		ext := filepath.Ext(f.Name())
		if f.Type().IsRegular() && (ext == ".pem" || ext == ".crt" || ext == ".key") {
			out = append(out, read(filepath.Join(dir, f.Name()))...)
		}
	}
	return out, nil
}

func read(path string) []Entry {
	data, err := os.ReadFile(path)
	if err != nil {
		return []Entry{{File: path, Err: err}}
	}
	var out []Entry
	keys := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certBlock {
			keys++
			continue
		}
		e := Entry{File: path}
		if e.Cert, err = x509.ParseCertificate(block.Bytes); err != nil {
			e.Err = fmt.Errorf("%v: %w", err, ErrDamaged)
		}
		out = append(out, e)
	}
	switch {
	case len(out) > 0:
	case keys > 0:
		out = []Entry{{File: path}}
	case strings.HasSuffix(path, ".pem") || strings.HasSuffix(path, ".crt"):
		out = []Entry{{File: path, Err: fmt.Errorf("no certificate in it: %w", ErrDamaged)}}
	}
	return out // a .key file without PEM is another kind of key: of archives
}
