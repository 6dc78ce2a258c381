package peer

import "errors"

// Why a peer refuses or is refused. Test with errors.Is.
var (
	// ErrClosed: the network has ended.
	ErrClosed = errors.New("peer: network is closed")
	// ErrUnknownPeer: nobody knows where that server is.
	ErrUnknownPeer = errors.New("peer: address of the server is not known")
	// ErrIdentity: who answered is not the server that was meant, or no server.
	ErrIdentity = errors.New("peer: not the server that was expected")
	// ErrWrongCluster: the other server belongs to another cluster.
	ErrWrongCluster = errors.New("peer: server of another cluster")
	// ErrVersion: the two servers have no version of the protocol in common.
	ErrVersion = errors.New("peer: no common protocol version")
	// ErrPeerStale: the other server is of an older generation of the cluster.
	ErrPeerStale = errors.New("peer: server of an older generation")
	// ErrStale: this server is of an older generation than the other: what it
	// holds was given up when the cluster was reset, and it must resync.
	ErrStale = errors.New("peer: this server is of an older generation")
	// ErrRefused: the other server refused for a reason this one does not know.
	ErrRefused = errors.New("peer: refused")
	// ErrMalformed: bytes that are not the protocol.
	ErrMalformed = errors.New("peer: malformed message")
	// ErrTooLarge: a message over the bound.
	ErrTooLarge = errors.New("peer: message is too large")
)
