package server

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/encryption"
)

func TestANewClusterEncryptsSecretsUnlessToldOtherwise(t *testing.T) {
	var c config.API
	text, err := newEncryption(&c)()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := encryptWith(&c, file); err != nil || c.Encryption != (encryption.Settings{File: file, Reload: true}) {
		t.Errorf("%+v, %v", c.Encryption, err)
	}
	if other, _ := newEncryption(&config.API{})(); bytes.Equal(other, text) {
		t.Error("two clusters have the same key")
	}
	mine := config.API{Encryption: encryption.Settings{File: "/mine"}}
	if err := encryptWith(&mine, file); err != nil || mine.Encryption.File != "/mine" || newEncryption(&mine) != nil {
		t.Errorf("the administrator's file is not used: %+v, %v", mine.Encryption, err)
	}
}
