// Package peerpb owns the messages that servers of one cluster ask each other
// with, generated from peers.proto.
package peerpb

//go:generate protoc -I ../../.. --go_out=../../.. --go_opt=paths=source_relative --go-grpc_out=../../.. --go-grpc_opt=paths=source_relative raftstore/peer/peerpb/peers.proto
