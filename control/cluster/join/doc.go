// Package join owns the other end of the Cluster service: how a machine without anything but a token becomes a member,
// and how commands and agents talk to whichever server answers.
//
//	token ── pin of the CA ──▶ TLS to HOST ── only a server of that CA ──▶ Join: requests out, certificates in
//	                                                                          │
//	data directory ◀── keys and certificates, settings, servers' addresses ◀──┘
//
// Before the secret of a token is sent, the other side has proven to be a server of the cluster whose CA the token
// pins. Keys are made here and on disk before they are used; whatever moment the power goes, the same command run
// again ends in the same place.
//
// There are no goroutines but gRPC's and those of Follow, which the caller runs. Client.mu guards the connection in
// use.
package join
