package encryption

import (
	"encoding/base64"
	"fmt"
	"strings"
	"time"
)

// NewConfiguration returns an EncryptionConfiguration that encrypts the resources (as in secrets, widgets.example.com, *.*)
// with key, 32 bytes, named after now. Objects that are stored without encryption can still be read.
func NewConfiguration(resources []string, now time.Time, key []byte) []byte {
	return fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ['%s']
  providers:
  - secretbox: # the first encrypts; the others decrypt stored objects
      keys:
      - name: key-%s
        secret: %s
  - identity: {} # remove once all objects are encrypted
`, strings.Join(resources, "', '"), now.UTC().Format("20060102-150405"), base64.StdEncoding.EncodeToString(key))
}
