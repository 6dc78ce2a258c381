package peer

import "errors"

// The errors of connections between servers. Test with errors.Is.
var (
	// ErrClosed: the network has ended.
	ErrClosed = errors.New("peer: network is closed")
	// ErrUnknownPeer: Resolve has no address of the server.
	ErrUnknownPeer = errors.New("peer: address of the server is not known")
	// ErrIdentity: the other end is not the expected server, or no server.
	ErrIdentity = errors.New("peer: not the server that was expected")
	// ErrWrongCluster: the other server belongs to another cluster.
	ErrWrongCluster = errors.New("peer: server of another cluster")
	// ErrVersion: the two servers have no version of the protocol in common.
	ErrVersion = errors.New("peer: no common protocol version")
	// ErrPeerStale: the other server is of an older generation of the cluster.
	ErrPeerStale = errors.New("peer: server of an older generation")
	// ErrStale: this server is of an older generation than the other: the cluster was reset without it. It must discard its data and
	// join again.
	ErrStale = errors.New("peer: this server is of an older generation")
	// ErrRefused: the other server refused for a reason this one does not know.
	ErrRefused = errors.New("peer: refused")
	// ErrMalformed: the bytes do not follow the protocol.
	ErrMalformed = errors.New("peer: malformed message")
	// ErrTooLarge: the message is larger than allowed.
	ErrTooLarge = errors.New("peer: message is too large")
)
