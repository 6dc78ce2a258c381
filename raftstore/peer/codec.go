package peer

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// decoder reads varints and strings from bytes that may be malformed. After the first fault, bad is true and every value is zero.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// view reads a length-prefixed string of at most max bytes and returns it without a copy.
func (d *decoder) view(max int) []byte {
	n := d.uint()
	if n > uint64(len(d.b)) || n > uint64(max) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

// bytes reads a length-prefixed string and returns a copy, nil when it is empty.
func (d *decoder) bytes() []byte {
	v := d.view(len(d.b))
	if len(v) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(v)), v...)
}

func (d *decoder) bool() bool { return d.uint() == 1 }

func (d *decoder) header() raft.RPCHeader {
	return raft.RPCHeader{ProtocolVersion: raft.ProtocolVersion(d.uint()), ID: d.bytes(), Addr: d.bytes()}
}

// err returns ErrMalformed if a field could not be read. Bytes after the known fields are no error: a newer version sends more.
func (d *decoder) err(what string) error {
	if d.bad {
		return fmt.Errorf("%w: %s", ErrMalformed, what)
	}
	return nil
}

func putUint(b []byte, v ...uint64) []byte {
	for _, v := range v {
		b = binary.AppendUvarint(b, v)
	}
	return b
}

func putBytes(b, v []byte) []byte { return append(binary.AppendUvarint(b, uint64(len(v))), v...) }

func putBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1)
	}
	return append(b, 0)
}

func putHeader(b []byte, h raft.RPCHeader) []byte {
	return putBytes(putBytes(putUint(b, uint64(h.ProtocolVersion)), h.ID), h.Addr)
}

// minLog is the smallest size of an entry in bytes: six fields of one byte each.
const minLog = 6

func putLog(b []byte, l *raft.Log) []byte {
	b = putUint(b, l.Index, l.Term, uint64(l.Type))
	b = putBytes(putBytes(b, l.Data), l.Extensions)
	var at uint64 // 0: no time
	if !l.AppendedAt.IsZero() {
		at = uint64(l.AppendedAt.UnixNano())
	}
	return putUint(b, at)
}

// log decodes an entry. Data and Extensions are copies, so that an entry does not keep its whole message in memory.
func (d *decoder) log(l *raft.Log) {
	l.Index, l.Term, l.Type = d.uint(), d.uint(), raft.LogType(d.uint())
	l.Data, l.Extensions = d.bytes(), d.bytes()
	if at := d.uint(); at != 0 {
		l.AppendedAt = time.Unix(0, int64(at))
	}
}

// truncateEntries shortens req to the entries that fit in about soft bytes, at least one. Raft goes on from the last entry that req holds
// afterwards.
func truncateEntries(req *raft.AppendEntriesRequest, soft int) {
	size := 0
	for i, l := range req.Entries {
		size += len(l.Data) + len(l.Extensions)
		if i > 0 && size > soft {
			req.Entries = req.Entries[:i]
			return
		}
	}
}

func putAppend(b []byte, r *raft.AppendEntriesRequest) []byte {
	b = putUint(putHeader(b, r.RPCHeader), r.Term)
	b = putBytes(b, r.Leader)
	b = putUint(b, r.PrevLogEntry, r.PrevLogTerm, r.LeaderCommitIndex, uint64(len(r.Entries)))
	for _, l := range r.Entries {
		b = putLog(b, l)
	}
	return b
}

func (d *decoder) append() *raft.AppendEntriesRequest {
	r := &raft.AppendEntriesRequest{
		RPCHeader: d.header(), Term: d.uint(), Leader: d.bytes(),
		PrevLogEntry: d.uint(), PrevLogTerm: d.uint(), LeaderCommitIndex: d.uint(),
	}
	n := d.uint()
	if n > uint64(len(d.b)/minLog) {
		d.bad = true
		return nil
	}
	if n == 0 {
		return r
	}
	logs := make([]raft.Log, n)
	r.Entries = make([]*raft.Log, n)
	for i := range logs {
		d.log(&logs[i])
		r.Entries[i] = &logs[i]
	}
	return r
}

// encodeRequest appends the message of a request of any kind.
func encodeRequest(b []byte, req any) (kind, []byte, error) {
	switch r := req.(type) {
	case *raft.AppendEntriesRequest:
		return kindAppend, putAppend(b, r), nil
	case *raft.RequestVoteRequest:
		b = putUint(putHeader(b, r.RPCHeader), r.Term)
		b = putUint(putBytes(b, r.Candidate), r.LastLogIndex, r.LastLogTerm)
		return kindVote, putBool(b, r.LeadershipTransfer), nil
	case *raft.RequestPreVoteRequest:
		return kindPreVote, putUint(putHeader(b, r.RPCHeader), r.Term, r.LastLogIndex, r.LastLogTerm), nil
	case *raft.TimeoutNowRequest:
		return kindTimeoutNow, putHeader(b, r.RPCHeader), nil
	case *raft.InstallSnapshotRequest:
		b = putUint(putHeader(b, r.RPCHeader), uint64(r.SnapshotVersion), r.Term)
		b = putUint(putBytes(b, r.Leader), r.LastLogIndex, r.LastLogTerm)
		b = putUint(putBytes(putBytes(b, r.Peers), r.Configuration), r.ConfigurationIndex, uint64(r.Size))
		return kindSnapshot, b, nil
	}
	return 0, b, fmt.Errorf("%w: request of type %T", ErrMalformed, req)
}

// decodeRequest decodes the message of a request of kind k.
func decodeRequest(k kind, body []byte) (any, error) {
	d := decoder{b: body}
	var req any
	switch k {
	case kindAppend:
		req = d.append()
	case kindVote:
		req = &raft.RequestVoteRequest{
			RPCHeader: d.header(), Term: d.uint(), Candidate: d.bytes(),
			LastLogIndex: d.uint(), LastLogTerm: d.uint(), LeadershipTransfer: d.bool(),
		}
	case kindPreVote:
		req = &raft.RequestPreVoteRequest{
			RPCHeader: d.header(), Term: d.uint(), LastLogIndex: d.uint(), LastLogTerm: d.uint(),
		}
	case kindTimeoutNow:
		req = &raft.TimeoutNowRequest{RPCHeader: d.header()}
	case kindSnapshot:
		r := &raft.InstallSnapshotRequest{
			RPCHeader: d.header(), SnapshotVersion: raft.SnapshotVersion(d.uint()), Term: d.uint(),
			Leader: d.bytes(), LastLogIndex: d.uint(), LastLogTerm: d.uint(),
			Peers: d.bytes(), Configuration: d.bytes(), ConfigurationIndex: d.uint(), Size: int64(d.uint()),
		}
		d.bad = d.bad || r.Size < 0
		req = r
	default:
		return nil, fmt.Errorf("%w: request of kind %d", ErrMalformed, k)
	}
	return req, d.err("request")
}

// encodeResponse appends the message of a response of any kind.
func encodeResponse(b []byte, resp any) ([]byte, error) {
	switch r := resp.(type) {
	case *raft.AppendEntriesResponse:
		b = putUint(putHeader(b, r.RPCHeader), r.Term, r.LastLog)
		return putBool(putBool(b, r.Success), r.NoRetryBackoff), nil
	case *raft.RequestVoteResponse:
		b = putBytes(putUint(putHeader(b, r.RPCHeader), r.Term), r.Peers)
		return putBool(b, r.Granted), nil
	case *raft.RequestPreVoteResponse:
		return putBool(putUint(putHeader(b, r.RPCHeader), r.Term), r.Granted), nil
	case *raft.TimeoutNowResponse:
		return putHeader(b, r.RPCHeader), nil
	case *raft.InstallSnapshotResponse:
		return putBool(putUint(putHeader(b, r.RPCHeader), r.Term), r.Success), nil
	}
	return b, fmt.Errorf("%w: response of type %T", ErrMalformed, resp)
}

// decodeResponse decodes a response of resp's type into resp.
func decodeResponse(body []byte, resp any) error {
	d := decoder{b: body}
	switch r := resp.(type) {
	case *raft.AppendEntriesResponse:
		*r = raft.AppendEntriesResponse{
			RPCHeader: d.header(), Term: d.uint(), LastLog: d.uint(), Success: d.bool(), NoRetryBackoff: d.bool(),
		}
	case *raft.RequestVoteResponse:
		*r = raft.RequestVoteResponse{RPCHeader: d.header(), Term: d.uint(), Peers: d.bytes(), Granted: d.bool()}
	case *raft.RequestPreVoteResponse:
		*r = raft.RequestPreVoteResponse{RPCHeader: d.header(), Term: d.uint(), Granted: d.bool()}
	case *raft.TimeoutNowResponse:
		*r = raft.TimeoutNowResponse{RPCHeader: d.header()}
	case *raft.InstallSnapshotResponse:
		*r = raft.InstallSnapshotResponse{RPCHeader: d.header(), Term: d.uint(), Success: d.bool()}
	default:
		return fmt.Errorf("%w: response of type %T", ErrMalformed, resp)
	}
	return d.err("response")
}
