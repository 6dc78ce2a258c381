// Package archive owns the form of snapshot files: a stream of the store's state, with the cluster's keys beside it, both
// encrypted with the recovery key, so that one file and that key make the cluster again, and the file alone says nothing but
// whose it is and when it was made.
//
//	magic · u16 version · u32 length, header (JSON) · u32 CRC      who made it, when, of which cluster
//	u32 length, sealed keys · u32 CRC                              AES-256-GCM under the recovery key
//	{ u32 length, bytes · u32 CRC }…                               the store's own stream, encrypted (stream.go), in frames
//	u32 0 · u32 length, trailer (JSON) · u32 length                revision, number of keys, bytes
//	SHA-256 of all before · end magic
//
// Every length is bounded before memory is taken; a reader says io.EOF only after the sum over everything held and
// nothing followed. There are no goroutines and no locks.
package archive
