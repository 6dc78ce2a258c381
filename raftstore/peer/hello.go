package peer

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Versions of the protocol between servers, which is hello, Raft's frames and the Peers service together. Two servers use the highest
// version that both know.
const (
	Version       = 1 // highest version of this program
	OldestVersion = 1 // lowest version
)

const (
	maxHello  = 1024 // bytes of a hello
	maxString = 255  // bytes of a string in a hello
)

// verdict is a server's answer to another server's hello.
type verdict uint64

const (
	welcome      verdict = iota
	wrongCluster         // the sender is of another cluster
	tooNew               // the sender's oldest version is newer than the receiver's newest
	tooOld               // the sender's newest version is older than the receiver's oldest
	stale                // the sender is of an older generation
	ahead                // the sender is of a newer generation
	wrongServer          // the hello names another server than the sender's certificate
	notServer            // wrongServer as the sender sees it
)

// hello is the first message on a connection. The side that dialed sends its hello, and the other side answers with its own and a verdict.
type hello struct {
	version, oldest uint64
	generation      int64
	cluster, server string
	verdict         verdict
}

// encode returns the hello with its length before it.
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

// decodeHello decodes a hello. It ignores bytes after the known fields, which a newer version sends.
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

// answerHello returns the verdict of this server, whose hello is ours, on theirs.
func answerHello(ours, theirs hello) verdict {
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

// refusal returns the error of the side whose verdict on theirs is v; nil for welcome.
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
		return fmt.Errorf("%w: its hello names server %s", ErrIdentity, theirs.server)
	case notServer:
		return fmt.Errorf("%w: the peer does not accept this certificate as server %s's", ErrRefused, ours.server)
	}
	return fmt.Errorf("%w: reason %d", ErrRefused, v)
}

// mirror returns this side's verdict for a verdict of the other side.
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
