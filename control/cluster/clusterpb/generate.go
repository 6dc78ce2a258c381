// Package clusterpb owns the wire form of the Cluster service; cluster.proto
// documents it, everything else is generated from there.
package clusterpb

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative cluster.proto
