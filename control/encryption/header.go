package encryption

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	kmstypes "k8s.io/apiserver/pkg/storage/value/encrypt/envelope/kmsv2/v2"
)

// mark starts every encrypted value; no object's encoding starts so.
const mark = "k8s:enc:"

// Header says with what a stored value is encrypted. The zero value is: with nothing.
type Header struct {
	// Provider is aesgcm, aescbc, secretbox or kms.
	Provider string `json:"provider,omitempty"`
	// Key is the key's name; of a KMS plug-in, the plug-in's.
	Key string `json:"key,omitempty"`
	// KeyID is the key a KMS plug-in had encrypted with, as it calls it.
	KeyID string `json:"keyID,omitempty"`
}

// String is what people read.
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

// HeaderOf reads what precedes a value's encrypted part: k8s:enc:PROVIDER:VERSION:KEY: and, of KMS version 2, the message
// around it. Nothing is decrypted.
func HeaderOf(stored []byte) Header {
	if !bytes.HasPrefix(stored, []byte(mark)) {
		return Header{}
	}
	const longest = 1 << 10 // of provider, version and name; names are short, and the rest is binary
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
