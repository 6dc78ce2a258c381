package encryption

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
)

// mark starts every encrypted value. No encoding of an object starts like this.
const mark = "k8s:enc:"

// Header says how a stored value is encrypted. The zero value stands for no encryption.
type Header struct {
	// Provider is aesgcm, aescbc, secretbox or kms.
	Provider string `json:"provider,omitempty"`
	// Key is the name of the key, or of the KMS plug-in.
	Key string `json:"key,omitempty"`
	// KeyID is the KMS plug-in's name for its key.
	KeyID string `json:"keyID,omitempty"`
}

// String returns the header for people.
func (h Header) String() string {
	switch {
	case h.Provider == "":
		return "no encryption"
	case h.KeyID != "":
		return fmt.Sprintf("%s plug-in %q, key %q", h.Provider, h.Key, h.KeyID)
	case h.Provider == "kms":
		return fmt.Sprintf("%s plug-in %q", h.Provider, h.Key)
	}
	return fmt.Sprintf("%s key %q", h.Provider, h.Key)
}

// HeaderOf parses the start of a stored value, k8s:enc:PROVIDER:VERSION:KEY:, and for KMS version 2 the message after
// it. It decrypts nothing.
func HeaderOf(stored []byte) Header {
	if !bytes.HasPrefix(stored, []byte(mark)) {
		return Header{}
	}
	const longest = 1 << 10 // bytes of provider, version and name, which are short; the rest is binary
	parts := strings.SplitN(string(stored[len(mark):min(len(stored), longest)]), ":", 4)
	if len(parts) < 4 {
		return Header{Provider: "unknown"}
	}
	h := Header{Provider: parts[0], Key: parts[2]}
	if h.Provider == "kms" && parts[1] == "v2" {
		var o kmstypes.EncryptedObject
		rest := stored[len(mark)+len(parts[0])+len(parts[1])+len(parts[2])+3:]
		if err := proto.Unmarshal(rest, &o); err == nil {
			h.KeyID = o.KeyID
		}
	}
	return h
}
