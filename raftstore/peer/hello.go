package peer

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Versions of the protocol between peers: of hello, of Raft's frames and of the
// Peers service together. Two servers speak the highest that both know.
const (
	Version       = 1 // the highest that this program speaks
	OldestVersion = 1 // the lowest
)

const (
	maxHello  = 1024 // bytes of a hello
	maxString = 255  // bytes of a string in it
)

// verdict is what a server makes of another's hello.
type verdict uint64

const (
	welcome      verdict = iota
	wrongCluster         // you are of another cluster
	tooNew               // you speak no version as old as mine
	tooOld               // you speak no version as new as mine
	stale                // you are of an older generation
	ahead                // you are of a newer generation
	wrongServer          // your hello is not that of the server I know you for
	notServer            // the mirror of it: my certificate is not taken for mine
)

// hello is the first message on a connection, sent by both sides: the one that
// dialed sends its own, the other answers with its own and a verdict.
type hello struct {
	version, oldest uint64
	generation      int64
	cluster, server string
	verdict         verdict
}

// encode is the hello with its length before it.
func (h hello) encode() []byte {
	b := make([]byte, 2, 128)
	b = binary.AppendUvarint(b, h.version)
	b = binary.AppendUvarint(b, h.oldest)
	b = binary.AppendUvarint(b, uint64(h.generation))
	for _, s := range []string{h.cluster, h.server} {
		b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
	}
	b = binary.AppendUvarint(b, uint64(h.verdict))
	binary.BigEndian.PutUint16(b, uint16(len(b)-2))
	return b
}

// readHello reads at most maxHello bytes.
func readHello(r io.Reader) (hello, error) {
	var size [2]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return hello{}, fmt.Errorf("peer: read hello: %w", err)
	}
	n := binary.BigEndian.Uint16(size[:])
	if n > maxHello {
		return hello{}, fmt.Errorf("%w: hello of %d bytes, at most %d allowed", ErrTooLarge, n, maxHello)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return hello{}, fmt.Errorf("peer: read hello: %w", err)
	}
	return decodeHello(body)
}

// decodeHello decodes a hello. What follows the fields known here is of a newer
// version and ignored.
func decodeHello(body []byte) (hello, error) {
	d := decoder{b: body}
	h := hello{version: d.uint(), oldest: d.uint(), generation: int64(d.uint())}
	h.cluster, h.server = string(d.view(maxString)), string(d.view(maxString))
	h.verdict = verdict(d.uint())
	if d.bad || h.version == 0 || h.oldest == 0 || h.oldest > h.version || h.generation < 0 {
		return hello{}, fmt.Errorf("%w: hello", ErrMalformed)
	}
	if !isID(h.cluster) || !isID(h.server) {
		return hello{}, fmt.Errorf("%w: hello with identity %q of cluster %q", ErrMalformed, h.server, h.cluster)
	}
	return h, nil
}

// judge is what ours makes of theirs.
func judge(ours, theirs hello) verdict {
	switch {
	case theirs.cluster != ours.cluster:
		return wrongCluster
	case theirs.oldest > ours.version:
		return tooNew
	case theirs.version < ours.oldest:
		return tooOld
	case theirs.generation < ours.generation:
		return stale
	case theirs.generation > ours.generation:
		return ahead
	}
	return welcome
}

// refusal is the error on the side that judged theirs and came to v; nil for
// welcome.
func refusal(v verdict, ours, theirs hello) error {
	switch v {
	case welcome:
		return nil
	case wrongCluster:
		return fmt.Errorf("%w: %s, this is %s", ErrWrongCluster, theirs.cluster, ours.cluster)
	case tooNew, tooOld:
		return fmt.Errorf("%w: the peer speaks %d to %d, this server %d to %d",
			ErrVersion, theirs.oldest, theirs.version, ours.oldest, ours.version)
	case stale:
		return fmt.Errorf("%w: %d, this is %d", ErrPeerStale, theirs.generation, ours.generation)
	case ahead:
		return fmt.Errorf("%w: %d, the peer's is %d", ErrStale, ours.generation, theirs.generation)
	case wrongServer:
		return fmt.Errorf("%w: it says it is %s", ErrIdentity, theirs.server)
	case notServer:
		return fmt.Errorf("%w: the peer does not take this certificate for that of %s", ErrRefused, ours.server)
	}
	return fmt.Errorf("%w: reason %d", ErrRefused, v)
}

// mirror is what a verdict of the other side means on this one.
func mirror(v verdict) verdict {
	switch v {
	case tooNew:
		return tooOld
	case tooOld:
		return tooNew
	case stale:
		return ahead
	case ahead:
		return stale
	case wrongServer:
		return notServer
	}
	return v
}
