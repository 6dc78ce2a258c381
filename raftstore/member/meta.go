package member

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// MaxMeta is the largest size of an encoded Meta in bytes: memberlist's limit.
const MaxMeta = 512

// Role is server or agent.
type Role string

const (
	RoleServer Role = "server"
	// RoleAgent is for lists of all machines. No agent takes part in gossip: a Meta with it is refused.
	RoleAgent Role = "agent"
)

// Meta is the data that a member announces about itself.
type Meta struct {
	// ServerID is the identity of a server, 32 hex digits.
	ServerID string
	// Name is the node name. It is memberlist's name and not part of the encoding.
	Name string
	Role Role
	// APIAddr is the host:port of a server's one TCP port.
	APIAddr string
	// Version is the version of the program, for people.
	Version string
	// Protocol is the newest version of the protocol between peers that the member knows.
	Protocol int
	// Generation is the generation of the member's cluster, see raftstore.
	Generation int64
	// ClusterID is 32 hex digits. Members of another cluster are refused.
	ClusterID string
	// Keys are the fingerprints of the gossip keys that the member knows; it encrypts with the first. A rotation waits for them.
	Keys []KeyID
	// Leaving is set by a member that stops on purpose, before it leaves.
	Leaving Leaving
}

// Leaving is why a member leaves.
type Leaving byte

const (
	// Staying is the zero value.
	Staying Leaving = iota
	// Stopping members come back.
	Stopping
	// Departing members do not come back: the server is removed.
	Departing
)

// ErrMeta is wrapped by every error of encoding and decoding a Meta.
var ErrMeta = errors.New("member: bad metadata")

// metaLayout is the first byte. It changes only when old decoders cannot read the rest; a new field is a new tag, which they skip.
const metaLayout = 1

// Tags of fields. After the tag comes a length (one byte), then the value.
const (
	tagServerID = iota + 1
	tagClusterID
	tagRole
	tagAPIAddr
	tagVersion
	tagProtocol
	tagGeneration
	tagKeys
	tagLeaving
)

// Encode returns m in at most MaxMeta bytes.
func (m Meta) Encode() ([]byte, error) {
	out := []byte{metaLayout}
	field := func(tag byte, value []byte) {
		if len(value) > 0 && len(value) < 256 {
			out = append(append(out, tag, byte(len(value))), value...)
		}
	}
	if err := m.validate(); err != nil {
		return nil, err
	}
	id, _ := hex.DecodeString(m.ServerID)
	cluster, _ := hex.DecodeString(m.ClusterID)
	field(tagServerID, id)
	field(tagClusterID, cluster)
	field(tagRole, []byte{'s'}) // the only role there is
	field(tagAPIAddr, []byte(m.APIAddr))
	field(tagVersion, []byte(m.Version))
	field(tagProtocol, binary.AppendUvarint(nil, uint64(m.Protocol)))
	field(tagGeneration, binary.AppendUvarint(nil, uint64(m.Generation)))
	var keys []byte
	for _, k := range m.Keys {
		keys = append(keys, k[:]...)
	}
	field(tagKeys, keys)
	if m.Leaving != Staying {
		field(tagLeaving, []byte{byte(m.Leaving)})
	}
	if len(out) > MaxMeta {
		return nil, fmt.Errorf("%w: %d bytes, at most %d fit", ErrMeta, len(out), MaxMeta)
	}
	return out, nil
}

func (m Meta) validate() error {
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrMeta}, args...)...))
	}
	if m.Role != RoleServer {
		bad("role %q", m.Role)
	}
	if !isID(m.ServerID) {
		bad("server ID %q is not 32 hex digits", m.ServerID)
	}
	if !isID(m.ClusterID) {
		bad("cluster ID %q is not 32 hex digits", m.ClusterID)
	}
	if len(m.APIAddr) > 255 || !printable(m.APIAddr) {
		bad("address %q", m.APIAddr)
	}
	if len(m.Version) > 64 || !printable(m.Version) {
		bad("version %q", m.Version)
	}
	if m.Protocol < 0 || m.Generation < 0 {
		bad("negative protocol or generation")
	}
	if len(m.Keys) > maxKeys {
		bad("%d keys, at most %d", len(m.Keys), maxKeys)
	}
	return errors.Join(errs...)
}

// DecodeMeta reads an encoded Meta of any version. It skips fields that it does not know.
func DecodeMeta(in []byte) (Meta, error) {
	var m Meta
	if len(in) == 0 || len(in) > MaxMeta {
		return m, fmt.Errorf("%w: %d bytes", ErrMeta, len(in))
	}
	if in[0] != metaLayout {
		return m, fmt.Errorf("%w: layout %d is not known here", ErrMeta, in[0])
	}
	for rest := in[1:]; len(rest) > 0; {
		if len(rest) < 2 || len(rest) < 2+int(rest[1]) {
			return m, fmt.Errorf("%w: cut short", ErrMeta)
		}
		tag, value := rest[0], rest[2:2+int(rest[1])]
		if err := m.decodeField(tag, value); err != nil {
			return Meta{}, err
		}
		rest = rest[2+len(value):]
	}
	if err := m.validate(); err != nil {
		return Meta{}, err
	}
	return m, nil
}

func (m *Meta) decodeField(tag byte, value []byte) error {
	switch tag {
	case tagServerID:
		m.ServerID = hex.EncodeToString(value)
	case tagClusterID:
		m.ClusterID = hex.EncodeToString(value)
	case tagRole:
		if string(value) == "s" {
			m.Role = RoleServer
		}
	case tagAPIAddr:
		m.APIAddr = string(value)
	case tagVersion:
		m.Version = string(value)
	case tagProtocol:
		v, n := binary.Uvarint(value)
		if n != len(value) || v > 1<<31-1 {
			return fmt.Errorf("%w: protocol", ErrMeta)
		}
		m.Protocol = int(v)
	case tagGeneration:
		v, n := binary.Uvarint(value)
		if n != len(value) || v > 1<<63-1 {
			return fmt.Errorf("%w: generation", ErrMeta)
		}
		m.Generation = int64(v)
	case tagKeys:
		if len(value)%len(KeyID{}) != 0 {
			return fmt.Errorf("%w: keys", ErrMeta)
		}
		m.Keys = nil
		for ; len(value) > 0; value = value[len(KeyID{}):] {
			m.Keys = append(m.Keys, KeyID(value[:len(KeyID{})]))
		}
	case tagLeaving:
		if len(value) == 1 {
			m.Leaving = Leaving(value[0])
		}
	}
	return nil
}

// isID reports whether s has the form of a ServerID or a ClusterID.
func isID(s string) bool {
	raw, err := hex.DecodeString(s)
	return err == nil && len(raw) == 16 && s == strings.ToLower(s)
}

// printable reports whether s can be printed on a terminal: printable ASCII only.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c > 0x7e {
			return false
		}
	}
	return true
}
