package server

import (
	"crypto/rand"
	"fmt"
	"time"

	"github.com/balsahq/balsa/cmd/balsa/daemon/config"
	"github.com/balsahq/balsa/control/encryption"
)

// newEncryption returns the function that creates the encryption configuration of a
// new cluster, or nil when the administrator has given one.
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

// encryptWith sets c to the cluster's own encryption configuration in file, unless
// the cluster has none ("") or the administrator has given another one.
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
