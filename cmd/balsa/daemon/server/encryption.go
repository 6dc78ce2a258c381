package server

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/encryption"
)

// newEncryption makes the configuration of a new cluster, unless the
// administrator has one.
func newEncryption(c *config.API) func() ([]byte, error) {
	if c.Encryption.File != "" {
		return nil
	}
	return func() ([]byte, error) {
		key := make([]byte, 32)
		_, _ = rand.Read(key) // never fails: crypto/rand aborts the program instead
		return encryption.NewConfiguration([]string{"secrets"}, time.Now(), key), nil
	}
}

// encryptWith takes the cluster's own configuration, unless there is none or the
// administrator has another.
func encryptWith(c *config.API, file string) error {
	if file == "" || c.Encryption.File != "" {
		return nil
	}
	c.Encryption = encryption.Settings{File: file, Reload: true}
	if err := c.Encryption.Validate(); err != nil {
		return fmt.Errorf("the cluster's encryption configuration: %w", err)
	}
	return nil
}
